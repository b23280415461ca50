//! The interpreter.

use weir_limits::{FILTER_MEMORY_WORDS, HEAD_LEN};

use crate::op::Op;
use crate::program::Program;

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
/// Words that nearly all programs do not read beyond.
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

    /// Does the same, and notes the bytes that the program reads.
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
