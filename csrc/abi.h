#pragma once

#include <string>

namespace archerfish {

// Describes program.h in lines that archerfish/ops/cpu/abi.py compares with the caller's declarations:
//   structure NAME SIZE
//   field STRUCTURE NAME OFFSET SIZE KIND     KIND is integer, float, pointer or structure.
//   operation NAME NUMBER ARGUMENTS           ARGUMENTS is the structure that it takes.
//   enumerator ENUMERATION NAME NUMBER
//   constant NAME VALUE
std::string describe_abi();

}  // namespace archerfish
