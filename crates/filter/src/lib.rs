//! Packet filters: tcpdump's expressions, compiled by libpcap to classic BPF (McCanne & Jacobson 1993), checked
//! once and run by weir's own interpreter.
//!
//! | file | what |
//! |---|---|
//! | `compile.rs` | who compiles: libpcap, here or in another process |
//! | `instruction.rs` | an instruction as libpcap writes it |
//! | `op.rs` | a decoded and checked instruction |
//! | `program.rs` | from expression to program; validates |
//! | `run.rs` | the interpreter |
//!
//! Running a [`Program`] cannot fail or loop: jumps go forward and end inside, and every load is checked against
//! the bytes.
#![forbid(unsafe_code)]

mod compile;
mod instruction;
mod op;
mod program;
mod run;

pub use compile::{Compiler, compile_by, compile_here};
pub use instruction::Instruction;
pub use program::{CompileError, Fault, InvalidProgram, Program};
pub use run::{Front, Looked, Outcome};

#[cfg(test)]
mod tests;
