//! The binary; everything is in the library, where the tests find the yards.

use std::process::ExitCode;

/// The allocator of the binary that is shipped: what the relay is compared with has no worse one.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    posthaste_bench::main()
}
