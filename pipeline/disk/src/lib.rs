//! Files read past the page cache: aligned buffers, `O_DIRECT`, io_uring.
