// An invalid memory access of a kernel ends its launch, as on a device, instead of the process.
#pragma once

#include "blocks.h"

namespace stand_in {

// Installs the handler. Faults outside of kernels are passed to the previous handlers.
void handle_segfaults();

// Explains a fault.
Failure explain(const Fault& fault, bool is_beyond_shared);

}  // namespace stand_in
