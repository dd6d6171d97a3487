#pragma once

namespace archerfish {

// Matrix tiles work on this machine, and this process may use them from now on.
bool amx_works();

}  // namespace archerfish
