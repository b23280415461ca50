//! From an expression to a program that can be run on anything.

use std::fmt;

use weir_limits::{FILTER_EXPRESSION_LEN_MAX, FILTER_INSTRUCTIONS_MAX};

use crate::compile::{self, CAPTURED_LEN_MAX};

use crate::instruction::{Instruction, RET};
use crate::op::Op;

/// A filter, checked: it ends whatever the packet is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    pub(crate) ops: Box<[Op]>,
}

/// Why an expression is no filter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// It is longer than any that weir takes.
    #[error("the expression has {len} bytes; at most {FILTER_EXPRESSION_LEN_MAX} are allowed")]
    TooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// libpcap does not understand it.
    #[error("{0}")]
    Expression(String),
    /// It is dear: libpcap would have gone on.
    #[error("libpcap was not done with it within {seconds} s")]
    TooDear {
        /// How long libpcap was given.
        seconds: u64,
    },
    /// The process that libpcap runs in has ended over it.
    #[error(
        "libpcap ended over it: it takes more than {mib} MiB of memory, or is a fault of libpcap's"
    )]
    Ended {
        /// How much memory that process may have.
        mib: u64,
    },
    /// Nobody compiles.
    #[error("it cannot be compiled: {0}")]
    NoCompiler(String),
    /// libpcap made of it what weir does not run.
    #[error("libpcap compiled it to a program that weir does not run: {0}")]
    Program(#[from] InvalidProgram),
}

/// Why instructions are no program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidProgram {
    /// None, or more than weir takes.
    #[error("the program has {len} instructions, not 1 to {FILTER_INSTRUCTIONS_MAX}")]
    Length {
        /// How many.
        len: usize,
    },
    /// One of them is bad.
    #[error("instruction {at}: {fault}")]
    Instruction {
        /// Its number, from 0.
        at: usize,
        /// What is wrong with it.
        fault: Fault,
    },
    /// They do not end with one that returns.
    #[error("the program does not end with `ret`")]
    NoReturn,
}

/// What is wrong with an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No such operation in classic BPF.
    Opcode(u16),
    /// It asks for what only a kernel's capture knows.
    Ancillary,
    /// There is no such word of memory.
    Memory(u32),
    /// A constant that nothing can be divided by.
    DivisionByZero,
    /// More bits than the register has.
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
    /// Compiles an expression of `pcap-filter(7)` for Ethernet frames, optimized. The empty expression matches all, and
    /// needs no compiler. Who compiles is said in `compile.rs`.
    ///
    /// # Errors
    /// [`CompileError`], with libpcap's own words where it has some.
    pub fn compile(expression: &str) -> Result<Self, CompileError> {
        if expression.is_empty() {
            return Ok(Self::all());
        }
        if expression.len() > FILTER_EXPRESSION_LEN_MAX {
            return Err(CompileError::TooLong { len: expression.len() });
        }
        Ok(Self::new(&compile::instructions(expression)?)?)
    }

    /// The program that every frame matches, as libpcap writes it.
    #[must_use]
    pub fn all() -> Self {
        let all = Instruction { code: RET, jt: 0, jf: 0, k: CAPTURED_LEN_MAX };
        Self::new(&[all]).expect("a program that only returns")
    }

    /// Checks instructions: each is known, jumps forward and within, names memory that is there,
    /// and divides by no zero; the last returns.
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
                // The last one cannot go on.
                Some(0) if after == 0 => return Err(InvalidProgram::NoReturn),
                Some(reach) if u64::from(reach) >= after => return Err(bad(Fault::Jump)),
                _ => ops.push(op),
            }
        }
        Ok(Self { ops: ops.into() })
    }

    /// How many instructions it has: a packet costs at most so many.
    #[expect(clippy::len_without_is_empty, reason = "a program is never empty")]
    pub fn len(&self) -> usize {
        self.ops.len()
    }
}
