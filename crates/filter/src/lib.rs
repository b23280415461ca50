//! Packet filters: tcpdump's expressions, compiled by libpcap to classic BPF (McCanne & Jacobson 1993), checked
//! once and run by weir's own interpreter.
//!
//! | file | what |
//! |---|---|
//! | `compile.rs` | the choice of the compiling process: this one, or another |
//! | `instruction.rs` | an instruction as libpcap writes it |
//! | `op.rs` | a decoded and checked instruction |
//! | `program.rs` | from expression to program; checks |
//! | `run.rs` | the interpreter |
//!
//! Running a [`Program`] cannot fail or loop: jumps go forward and stay inside, and every load is checked against the
//! packet's bytes.
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
