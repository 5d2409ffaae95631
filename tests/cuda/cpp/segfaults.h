// A kernel that touches memory that is not there ends its launch, as on a device, not the process.
#pragma once

#include "blocks.h"

namespace stand_in {

// From now on. What happens outside of kernels goes to the handlers that were there before.
void handle_segfaults();

// What a fault means.
Failure explain(const Fault& fault, bool is_beyond_shared);

}  // namespace stand_in
