//! Packet filters: tcpdump's expressions, compiled by libpcap to classic BPF (McCanne & Jacobson 1993), checked
//! once and run by weir's own interpreter.
//!
//! | file | what |
//! |---|---|
//! | `instruction.rs` | an instruction as libpcap writes it |
//! | `op.rs` | a decoded and checked instruction |
//! | `program.rs` | from expression to program: compile and validate |
//! | `run.rs` | the interpreter |
//!
//! Running a [`Program`] cannot fail or loop: jumps go forward and end inside, and every load is checked against
//! the bytes.
#![forbid(unsafe_code)]

mod instruction;
mod op;
mod program;
mod run;

pub use instruction::Instruction;
pub use program::{CompileError, Fault, InvalidProgram, Program};
pub use run::{Front, Looked, Outcome};

#[cfg(test)]
mod tests;
