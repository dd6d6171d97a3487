#pragma once

namespace archerfish {

// Whether matrix tiles work on this machine. If so, this process has the permission to use them.
bool amx_works();

}  // namespace archerfish
