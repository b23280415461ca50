//! weir's programs as a user starts them. A file is about a command, or about what several commands do with a running
//! weir.

mod compile;
mod host_side;
mod look;
mod port_programs;
mod programs;
mod reload;
mod stream;
