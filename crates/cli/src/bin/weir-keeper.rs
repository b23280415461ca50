//! `weir-keeper`: holds descriptors of a weir that may be killed, for the weir that follows.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    weir_keeper::main()
}
