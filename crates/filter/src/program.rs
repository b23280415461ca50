//! The way from an expression to a program that can run on any packet.

use std::fmt;

use weir_limits::{FILTER_EXPRESSION_LEN_MAX, FILTER_INSTRUCTIONS_MAX};

use crate::compile::{self, CAPTURED_LEN_MAX};

use crate::instruction::{Instruction, RET};
use crate::op::Op;

/// A checked filter: it ends for every packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    pub(crate) ops: Box<[Op]>,
}

/// The reason for which an expression is not a filter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// It is longer than weir allows.
    #[error("the expression has {len} bytes; at most {FILTER_EXPRESSION_LEN_MAX} are allowed")]
    TooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// libpcap does not accept it.
    #[error("{0}")]
    Expression(String),
    /// It is expensive: libpcap was not done in time.
    #[error("libpcap was not done with it within {seconds} s")]
    TooDear {
        /// The time that libpcap had.
        seconds: u64,
    },
    /// The process of libpcap ended because of it.
    #[error(
        "libpcap ended over it: it takes more than {mib} MiB of memory, or is a fault of libpcap's"
    )]
    Ended {
        /// The memory that this process could use.
        mib: u64,
    },
    /// There is no compiler.
    #[error("it cannot be compiled: {0}")]
    NoCompiler(String),
    /// libpcap compiled it to a program that weir does not run.
    #[error("libpcap compiled it to a program that weir does not run: {0}")]
    Program(#[from] InvalidProgram),
}

/// The reason for which instructions are not a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidProgram {
    /// There are none, or more than weir allows.
    #[error("the program has {len} instructions, not 1 to {FILTER_INSTRUCTIONS_MAX}")]
    Length {
        /// Their number.
        len: usize,
    },
    /// An instruction is bad.
    #[error("instruction {at}: {fault}")]
    Instruction {
        /// Its number, from 0.
        at: usize,
        /// Its fault.
        fault: Fault,
    },
    /// The last one does not return.
    #[error("the program does not end with `ret`")]
    NoReturn,
}

/// A fault of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Classic BPF has no such operation.
    Opcode(u16),
    /// It asks for data that only a kernel's capture has.
    Ancillary,
    /// There is no such word of scratch memory.
    Memory(u32),
    /// The constant divisor is zero.
    DivisionByZero,
    /// It shifts by at least the width of the register.
    Shift(u32),
    /// It jumps out of the program, or back.
    Jump,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Opcode(code) => write!(f, "unknown opcode {code:#x}"),
            Self::Ancillary => f.write_str("asks for what is not in the packet"),
            Self::Memory(word) => write!(f, "no word {word} of memory"),
            Self::DivisionByZero => f.write_str("division by zero"),
            Self::Shift(bits) => write!(f, "shift by {bits} bits"),
            Self::Jump => f.write_str("jump back, or out of the program"),
        }
    }
}

impl Program {
    /// Compiles an expression of `pcap-filter(7)` for Ethernet frames, optimized. The empty expression matches all
    /// frames, and needs no compiler. `compile.rs` chooses the compiling process.
    ///
    /// # Errors
    /// [`CompileError`], with libpcap's own message if it has one.
    pub fn compile(expression: &str) -> Result<Self, CompileError> {
        if expression.is_empty() {
            return Ok(Self::all());
        }
        if expression.len() > FILTER_EXPRESSION_LEN_MAX {
            return Err(CompileError::TooLong { len: expression.len() });
        }
        Ok(Self::new(&compile::instructions(expression)?)?)
    }

    /// The program that matches every frame, as libpcap writes it.
    #[must_use]
    pub fn all() -> Self {
        let all = Instruction { code: RET, jt: 0, jf: 0, k: CAPTURED_LEN_MAX };
        Self::new(&[all]).expect("a program that only returns")
    }

    /// Checks instructions: each is known, jumps only forward and inside the program, uses only existing memory words,
    /// and does not divide by zero; the last one returns.
    pub fn new(instructions: &[Instruction]) -> Result<Self, InvalidProgram> {
        let len = instructions.len();
        if !(1..=FILTER_INSTRUCTIONS_MAX).contains(&len) {
            return Err(InvalidProgram::Length { len });
        }
        let mut ops = Vec::with_capacity(len);
        for (at, instruction) in instructions.iter().enumerate() {
            let bad = |fault| InvalidProgram::Instruction { at, fault };
            let op = Op::decode(*instruction).map_err(bad)?;
            let after = (len - at - 1) as u64;
            match op.reach() {
                // The last one must not continue.
                Some(0) if after == 0 => return Err(InvalidProgram::NoReturn),
                Some(reach) if u64::from(reach) >= after => return Err(bad(Fault::Jump)),
                _ => ops.push(op),
            }
        }
        Ok(Self { ops: ops.into() })
    }

    /// The number of instructions: the most that a packet costs.
    #[expect(clippy::len_without_is_empty, reason = "a program is never empty")]
    pub fn len(&self) -> usize {
        self.ops.len()
    }
}
