//! The interpreter.

use weir_limits::FILTER_MEMORY_WORDS;

use crate::op::Op;
use crate::program::Program;

/// What a program says of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The packet is one of those that the expression means.
    Match,
    /// It is not. Also where the program looks beyond the packet's end, or divides by zero.
    NoMatch,
    /// It depends on bytes of the packet that are not in the front that was given.
    Beyond,
}

/// Bytes of `front` from `at` on.
#[inline]
fn load<const N: usize>(front: &[u8], at: u64) -> Option<[u8; N]> {
    front.get(usize::try_from(at).ok()?..)?.first_chunk().copied()
}

/// A load of `bytes` at `at` found no such bytes in the front of a packet of `len` bytes.
#[cold]
fn missed(at: u64, bytes: u64, len: u32) -> Outcome {
    if at + bytes <= u64::from(len) { Outcome::Beyond } else { Outcome::NoMatch }
}

impl Program {
    /// Runs the program on a packet of `len` bytes that begins with `front`.
    ///
    /// Takes at most [`Program::len`] steps: jumps go forward only.
    pub fn run(&self, front: &[u8], len: u32) -> Outcome {
        let (mut a, mut x) = (0_u32, 0_u32);
        let mut memory = [0_u32; FILTER_MEMORY_WORDS];
        let mut next = 0;
        macro_rules! load {
            ($at:expr, $word:ty) => {{
                let at: u64 = $at;
                match load(front, at) {
                    Some(bytes) => u32::from(<$word>::from_be_bytes(bytes)),
                    None => return missed(at, size_of::<$word>() as u64, len),
                }
            }};
        }
        let matched = |holds| if holds { Outcome::Match } else { Outcome::NoMatch };
        // A checked program does not come to its end, and has no place in memory that is not there.
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
                Op::LoadLen => a = len,
                Op::LoadXConstant(k) => x = k,
                Op::LoadXMemory(word) => x = memory.get(usize::from(word)).copied().unwrap_or(0),
                Op::LoadXLen => x = len,
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
