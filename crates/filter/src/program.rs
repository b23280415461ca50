//! The way from an expression to a program that can run on any packet, and the interpreter that runs it.

use std::fmt;
use std::sync::OnceLock;

use pcap::{Capture, Linktype};
use weir_limits::{
    FILTER_EXPRESSION_LEN_MAX, FILTER_INSTRUCTIONS_MAX, FILTER_MEMORY_WORDS, HEAD_LEN,
};

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

/// The result of a program for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The expression matches the packet.
    Match,
    /// The expression does not match, or the program reads beyond the packet's end, or divides by zero.
    NoMatch,
    /// The result depends on bytes of the packet that are not in the given front.
    Beyond,
}

/// 64-bit words of a front that [`Looked`] covers.
const WORDS: usize = HEAD_LEN / 8;
/// The number of words beyond which nearly no program reads.
const NEAR: usize = 8;

const _: () = assert!(HEAD_LEN.is_multiple_of(8) && NEAR < WORDS);

/// A buffer as long as the longest front of a packet. Behind a shorter front, the bytes are arbitrary.
pub type Front = [u8; HEAD_LEN];

/// The bytes of a packet that programs have read: all packets with these bytes have the same outcomes.
#[derive(Clone, Debug, Default)]
pub struct Looked {
    /// Bytes that were read, all ones, in words whose first byte is the lowest.
    masks: [u64; WORDS],
    /// The shortest front that contains all of them. It is longer than any front if programs read the length, missing
    /// bytes, or bytes beyond the words here.
    end: u64,
}

impl Looked {
    #[inline]
    fn at(&mut self, at: u64, bytes: u64) {
        let word = (at / 8) as usize;
        let mask = u128::from(u64::MAX >> (64 - 8 * bytes)) << (8 * (at % 8));
        for (word, mask) in [(word, mask as u64), (word + 1, (mask >> 64) as u64)] {
            match self.masks.get_mut(word) {
                _ if mask == 0 => {}
                Some(known) => *known |= mask,
                None => self.further(),
            }
        }
        self.end = self.end.max(at + bytes);
    }

    /// Notes that something else was read.
    pub fn further(&mut self) {
        self.end = u64::MAX;
    }

    /// True if the outcomes for the noted packet, which begins with `front`, also hold for a packet that begins with
    /// `other`, of which the first `len` bytes are valid.
    #[inline(always)]
    pub fn is_same(&self, front: &Front, other: &Front, len: usize) -> bool {
        let word = |front: &Front, n: usize| u64::from_le_bytes(front.as_chunks().0[n]);
        let differ = |n| (word(front, n) ^ word(other, n)) & self.masks[n];
        let mut different = (0..NEAR).fold(0, |all, n| all | differ(n));
        if self.end > 8 * NEAR as u64 {
            different |= (NEAR..WORDS).fold(0, |all, n| all | differ(n));
        }
        different == 0 && self.end <= len as u64
    }
}

/// Bytes of `front` from `at` on.
#[inline]
fn load<const N: usize>(front: &[u8], at: u64) -> Option<[u8; N]> {
    front.get(usize::try_from(at).ok()?..)?.first_chunk().copied()
}

/// The outcome after a load of `bytes` at `at` that is not in the front of a packet of `len` bytes.
#[cold]
fn missed(at: u64, bytes: u64, len: u32) -> Outcome {
    if at + bytes <= u64::from(len) { Outcome::Beyond } else { Outcome::NoMatch }
}

impl Program {
    /// Runs the program on a packet of `len` bytes that begins with `front`.
    ///
    /// Takes at most [`Program::len`] steps: jumps go forward only.
    pub fn run(&self, front: &[u8], len: u32) -> Outcome {
        self.run_with(front, len, |_| ())
    }

    /// As [`run`](Self::run), and notes the bytes that the program reads.
    pub fn run_and_note(&self, front: &[u8], len: u32, looked: &mut Looked) -> Outcome {
        self.run_with(front, len, |look| match look {
            Some((at, bytes)) => looked.at(at, bytes),
            None => looked.further(),
        })
    }

    /// `looks` gets the offset and length of each read of the packet, or `None` for a read of anything else.
    #[inline(always)]
    fn run_with(
        &self,
        front: &[u8],
        len: u32,
        mut looks: impl FnMut(Option<(u64, u64)>),
    ) -> Outcome {
        let (mut a, mut x) = (0_u32, 0_u32);
        let mut memory = [0_u32; FILTER_MEMORY_WORDS];
        let mut next = 0;
        macro_rules! load {
            ($at:expr, $word:ty) => {{
                let (at, size): (u64, u64) = ($at, size_of::<$word>() as u64);
                let Some(bytes) = load(front, at) else {
                    looks(None);
                    return missed(at, size, len);
                };
                looks(Some((at, size)));
                u32::from(<$word>::from_be_bytes(bytes))
            }};
        }
        let matched = |holds| if holds { Outcome::Match } else { Outcome::NoMatch };
        // A checked program returns before its end, and uses only existing words of memory.
        while let Some(&op) = self.ops.get(next) {
            next += 1;
            let at_x = |k: u32| u64::from(x) + u64::from(k);
            match op {
                Op::LoadWord(k) => a = load!(k.into(), u32),
                Op::LoadHalf(k) => a = load!(k.into(), u16),
                Op::LoadByte(k) => a = load!(k.into(), u8),
                Op::LoadWordAtX(k) => a = load!(at_x(k), u32),
                Op::LoadHalfAtX(k) => a = load!(at_x(k), u16),
                Op::LoadByteAtX(k) => a = load!(at_x(k), u8),
                Op::LoadConstant(k) => a = k,
                Op::LoadMemory(word) => a = memory.get(usize::from(word)).copied().unwrap_or(0),
                Op::LoadLen => {
                    looks(None);
                    a = len;
                }
                Op::LoadXConstant(k) => x = k,
                Op::LoadXMemory(word) => x = memory.get(usize::from(word)).copied().unwrap_or(0),
                Op::LoadXLen => {
                    looks(None);
                    x = len;
                }
                Op::LoadXHeaderLen(k) => x = 4 * (load!(k.into(), u8) & 0x0f),
                Op::Store(word) => {
                    if let Some(place) = memory.get_mut(usize::from(word)) {
                        *place = a;
                    }
                }
                Op::StoreX(word) => {
                    if let Some(place) = memory.get_mut(usize::from(word)) {
                        *place = x;
                    }
                }
                Op::Alu(alu, k) => match alu.apply(a, k) {
                    Some(result) => a = result,
                    None => return Outcome::NoMatch,
                },
                Op::AluX(alu) => match alu.apply(a, x) {
                    Some(result) => a = result,
                    None => return Outcome::NoMatch,
                },
                Op::Negate => a = a.wrapping_neg(),
                Op::Jump(k) => next += k as usize, // below the program's length, as checked
                Op::JumpEq { t, f, k } => next += usize::from(if a == k { t } else { f }),
                Op::JumpIf { test, t, f, k } => {
                    next += usize::from(if test.holds(a, k) { t } else { f });
                }
                Op::JumpIfX { test, t, f } => {
                    next += usize::from(if test.holds(a, x) { t } else { f });
                }
                Op::Return(holds) => return matched(holds),
                Op::ReturnA => return matched(a != 0),
                Op::AToX => x = a,
                Op::XToA => a = x,
            }
        }
        Outcome::NoMatch
    }
}
