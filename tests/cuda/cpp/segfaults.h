// A kernel that touches memory that is not there ends its launch, as on a device, not the process.
#pragma once

namespace stand_in {

// From now on. What happens outside of kernels goes to the handlers that were there before.
void handle_segfaults();

}  // namespace stand_in
