//! The way from an expression to a program that can run on any packet.

use std::fmt;
use std::sync::OnceLock;

use pcap::{Capture, Linktype};
use weir_limits::{FILTER_EXPRESSION_LEN_MAX, FILTER_INSTRUCTIONS_MAX};

use crate::op::{Instruction, Op, RET};

/// A checked filter: its program ends for every packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    pub(crate) ops: Box<[Op]>,
}

/// The reason why an expression is not a filter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// The expression is longer than weir allows.
    #[error("the expression has {len} bytes; at most {FILTER_EXPRESSION_LEN_MAX} are allowed")]
    TooLong {
        /// The expression's length in bytes.
        len: usize,
    },
    /// libpcap does not accept the expression.
    #[error("{0}")]
    Expression(String),
    /// The expression is expensive: libpcap did not compile it in time.
    #[error("libpcap was not done with it within {seconds} s")]
    TooDear {
        /// The time limit of libpcap.
        seconds: u64,
    },
    /// The process of libpcap ended because of the expression.
    #[error(
        "libpcap ended over it: it takes more than {mib} MiB of memory, or is a fault of libpcap's"
    )]
    Ended {
        /// The memory that the process could use.
        mib: u64,
    },
    /// There is no compiler.
    #[error("it cannot be compiled: {0}")]
    NoCompiler(String),
    /// libpcap compiled the expression to a program that weir does not run.
    #[error("libpcap compiled it to a program that weir does not run: {0}")]
    Program(#[from] InvalidProgram),
}

/// The reason why instructions are not a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidProgram {
    /// There are no instructions, or more than weir allows.
    #[error("the program has {len} instructions, not 1 to {FILTER_INSTRUCTIONS_MAX}")]
    Length {
        /// The number of instructions.
        len: usize,
    },
    /// An instruction is invalid.
    #[error("instruction {at}: {fault}")]
    Instruction {
        /// The instruction's number, from 0.
        at: usize,
        /// The instruction's fault.
        fault: Fault,
    },
    /// The last instruction does not return.
    #[error("the program does not end with `ret`")]
    NoReturn,
}

/// A fault of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Classic BPF has no operation with this code.
    Opcode(u16),
    /// The instruction reads data that only a kernel's capture has.
    Ancillary,
    /// Scratch memory has no word with this index.
    Memory(u32),
    /// The constant divisor is zero.
    DivisionByZero,
    /// The instruction shifts by at least the width of the register.
    Shift(u32),
    /// The instruction jumps out of the program, or back.
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
    /// frames, and needs no compiler. [`compile_by`] chooses the compiling process.
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
        Ok(Self::new(&instructions(expression)?)?)
    }

    /// The program that matches every frame, as libpcap writes it.
    #[must_use]
    pub fn all() -> Self {
        let all = Instruction { code: RET, jt: 0, jf: 0, k: CAPTURED_LEN_MAX };
        Self::new(&[all]).expect("a program that only returns")
    }

    /// Checks the instructions: each must be known, jump only forward and inside the program, use only existing memory
    /// words, and not divide by zero. The last one must return.
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
                // The last instruction must not continue.
                Some(0) if after == 0 => return Err(InvalidProgram::NoReturn),
                Some(reach) if u64::from(reach) >= after => return Err(bad(Fault::Jump)),
                _ => ops.push(op),
            }
        }
        Ok(Self { ops: ops.into() })
    }

    /// The number of instructions, which is also the largest number that one packet executes.
    #[expect(clippy::len_without_is_empty, reason = "a program is never empty")]
    pub fn len(&self) -> usize {
        self.ops.len()
    }
}

/// The number of bytes that libpcap's programs return for a packet that matches.
const CAPTURED_LEN_MAX: u32 = 65_535;

/// Compiles for a process that does not compile itself. libpcap is C, and takes minutes for some expressions of a few
/// hundred bytes: a program that serves others lets another process compile ([`compile_by`]). A program with its
/// caller's rights compiles itself.
pub trait Compiler: Send + Sync {
    /// libpcap's instructions for `expression`.
    ///
    /// # Errors
    /// [`CompileError`]
    fn instructions(&self, expression: &str) -> Result<Vec<Instruction>, CompileError>;
}

/// The compiler of this process. Once it is set, this process compiles nothing itself.
static COMPILER: OnceLock<Box<dyn Compiler>> = OnceLock::new();

/// Lets `compiler` compile all expressions of this process from now on. `false` if a compiler is set already.
pub fn compile_by(compiler: impl Compiler + 'static) -> bool {
    COMPILER.set(Box::new(compiler)).is_ok()
}

fn instructions(expression: &str) -> Result<Vec<Instruction>, CompileError> {
    match COMPILER.get() {
        Some(compiler) => compiler.instructions(expression),
        None => compile_here(expression),
    }
}

/// Compiles in this process, for as long as libpcap takes. Host names are resolved now.
///
/// # Errors
/// [`CompileError`], with libpcap's own message if it has one.
pub fn compile_here(expression: &str) -> Result<Vec<Instruction>, CompileError> {
    let refused = |error: pcap::Error| {
        CompileError::Expression(match error {
            pcap::Error::PcapError(words) => words,
            other => other.to_string(),
        })
    };
    let capture = Capture::dead(Linktype::ETHERNET).map_err(refused)?;
    let compiled = capture.compile(expression, true).map_err(refused)?;
    // The crate shows an instruction only as text.
    let shown = compiled.get_instructions().iter().map(ToString::to_string);
    let instructions: Option<Vec<_>> = shown.map(|text| Instruction::read(&text)).collect();
    instructions.ok_or_else(|| CompileError::Expression("its program cannot be read".into()))
}
