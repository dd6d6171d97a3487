#pragma once

#include <string>

namespace archerfish {

// All that the caller has to declare as program.h does, one line each, for archerfish/ops/cpu/abi.py to compare:
//   structure NAME SIZE
//   field STRUCTURE NAME OFFSET SIZE KIND     Of kinds integer, float, pointer and structure.
//   operation NAME NUMBER ARGUMENTS           The name of the structure that it takes.
//   enumerator ENUMERATION NAME NUMBER
//   constant NAME VALUE
std::string describe_abi();

}  // namespace archerfish
