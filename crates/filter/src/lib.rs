//! Packet filters: tcpdump's expressions, compiled by libpcap to classic BPF (McCanne & Jacobson 1993), checked
//! once and run by weir's own interpreter.
//!
//! | file | what |
//! |---|---|
//! | `op.rs` | an instruction as libpcap writes it, and a decoded and checked one |
//! | `program.rs` | from expression to program; checks; the compiling process: this one, or another; the interpreter |
//!
//! Running a [`Program`] cannot fail or loop: jumps go forward and stay inside, and every load is checked against the
//! packet's bytes.
#![forbid(unsafe_code)]

mod op;
mod program;

pub use op::Instruction;
pub use program::{
    CompileError, Compiler, Fault, InvalidProgram, Program, compile_by, compile_here,
};
pub use program::{Front, Looked, Outcome};

#[cfg(test)]
mod tests;
