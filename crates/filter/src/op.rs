//! An instruction, checked and decoded: eight bytes, executed by one `match`.

use weir_limits::FILTER_MEMORY_WORDS;

use crate::program::Fault;

/// An instruction in the form of libpcap's `struct bpf_insn`, not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// The opcode: class, and size and mode, or operation and source.
    pub code: u16,
    /// The number of instructions that a jump skips if its condition holds.
    pub jt: u8,
    /// The number that it skips if the condition does not hold.
    pub jf: u8,
    /// An offset, constant, word of memory, or jump length.
    pub k: u32,
}

impl Instruction {
    /// Bytes of an instruction that is passed between processes.
    pub const LEN: usize = 8;

    /// The instruction as bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let [a, b] = self.code.to_le_bytes();
        let [c, d, e, f] = self.k.to_le_bytes();
        [a, b, self.jt, self.jf, c, d, e, f]
    }

    /// The instruction of these bytes.
    #[must_use]
    pub fn from_bytes([a, b, jt, jf, c, d, e, f]: [u8; Self::LEN]) -> Self {
        Self { code: u16::from_le_bytes([a, b]), jt, jf, k: u32::from_le_bytes([c, d, e, f]) }
    }

    /// Reads four decimal numbers, as `tcpdump -ddd` prints them and the crate `pcap` shows them.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let instruction = Self {
            code: words.next()?.parse().ok()?,
            jt: words.next()?.parse().ok()?,
            jf: words.next()?.parse().ok()?,
            k: words.next()?.parse().ok()?,
        };
        words.next().is_none().then_some(instruction)
    }
}

// Classes.
pub(crate) const LD: u16 = 0x00;
pub(crate) const LDX: u16 = 0x01;
pub(crate) const ST: u16 = 0x02;
pub(crate) const STX: u16 = 0x03;
pub(crate) const ALU: u16 = 0x04;
pub(crate) const JMP: u16 = 0x05;
pub(crate) const RET: u16 = 0x06;
pub(crate) const MISC: u16 = 0x07;

// Sizes of loads.
pub(crate) const W: u16 = 0x00;
pub(crate) const H: u16 = 0x08;
pub(crate) const B: u16 = 0x10;

// Modes of loads.
pub(crate) const IMM: u16 = 0x00;
pub(crate) const ABS: u16 = 0x20;
pub(crate) const IND: u16 = 0x40;
pub(crate) const MEM: u16 = 0x60;
pub(crate) const LEN: u16 = 0x80;
pub(crate) const MSH: u16 = 0xa0;

// Operations.
pub(crate) const ADD: u16 = 0x00;
pub(crate) const SUB: u16 = 0x10;
pub(crate) const MUL: u16 = 0x20;
pub(crate) const DIV: u16 = 0x30;
pub(crate) const OR: u16 = 0x40;
pub(crate) const AND: u16 = 0x50;
pub(crate) const LSH: u16 = 0x60;
pub(crate) const RSH: u16 = 0x70;
pub(crate) const NEG: u16 = 0x80;
pub(crate) const MOD: u16 = 0x90;
pub(crate) const XOR: u16 = 0xa0;

// Conditions of jumps.
pub(crate) const JA: u16 = 0x00;
pub(crate) const JEQ: u16 = 0x10;
pub(crate) const JGT: u16 = 0x20;
pub(crate) const JGE: u16 = 0x30;
pub(crate) const JSET: u16 = 0x40;

// Sources: the constant, the register X, or (to return) the register A.
pub(crate) const K: u16 = 0x00;
pub(crate) const X: u16 = 0x08;
pub(crate) const A: u16 = 0x10;

// Moves between registers.
pub(crate) const TAX: u16 = 0x00;
pub(crate) const TXA: u16 = 0x80;

/// An arithmetic operation on the register A.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alu {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    Or,
    And,
    Xor,
    Lsh,
    Rsh,
}

/// The comparison of the register A with a jump's operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    Eq,
    Gt,
    Ge,
    Set,
}

/// An operation of the interpreter. Jumps contain the number of operations that they skip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// A = packet at an offset.
    LoadWord(u32),
    LoadHalf(u32),
    LoadByte(u32),
    /// A = packet at X and an offset.
    LoadWordAtX(u32),
    LoadHalfAtX(u32),
    LoadByteAtX(u32),
    LoadConstant(u32),
    LoadMemory(u8),
    LoadLen,
    LoadXConstant(u32),
    LoadXMemory(u8),
    LoadXLen,
    /// X = the length of an IPv4 header, from its first byte at an offset.
    LoadXHeaderLen(u32),
    Store(u8),
    StoreX(u8),
    Alu(Alu, u32),
    AluX(Alu),
    Negate,
    Jump(u32),
    JumpEq {
        t: u8,
        f: u8,
        k: u32,
    },
    JumpIf {
        test: Test,
        t: u8,
        f: u8,
        k: u32,
    },
    JumpIfX {
        test: Test,
        t: u8,
        f: u8,
    },
    Return(bool),
    ReturnA,
    AToX,
    XToA,
}

const _: () = assert!(size_of::<Op>() == 8);

impl Op {
    /// The operation of `instruction`; jump targets are not checked here.
    pub(crate) fn decode(instruction: Instruction) -> Result<Self, Fault> {
        let Instruction { code, jt: t, jf: f, k } = instruction;
        let opcode = Fault::Opcode(code);
        Ok(match code & 0x07 {
            LD => match code & !0x07 {
                mode if mode == W | ABS => Self::LoadWord(offset(k)?),
                mode if mode == H | ABS => Self::LoadHalf(offset(k)?),
                mode if mode == B | ABS => Self::LoadByte(offset(k)?),
                mode if mode == W | IND => Self::LoadWordAtX(k),
                mode if mode == H | IND => Self::LoadHalfAtX(k),
                mode if mode == B | IND => Self::LoadByteAtX(k),
                IMM => Self::LoadConstant(k),
                MEM => Self::LoadMemory(memory(k)?),
                LEN => Self::LoadLen,
                _ => return Err(opcode),
            },
            LDX => match code & !0x07 {
                mode if mode == B | MSH => Self::LoadXHeaderLen(k),
                IMM => Self::LoadXConstant(k),
                MEM => Self::LoadXMemory(memory(k)?),
                LEN => Self::LoadXLen,
                _ => return Err(opcode),
            },
            ST if code == ST => Self::Store(memory(k)?),
            STX if code == STX => Self::StoreX(memory(k)?),
            ALU if code == ALU | NEG => Self::Negate,
            ALU => {
                let alu = Alu::decode(code & !(0x07 | X)).ok_or(opcode)?;
                match code & X {
                    K => Self::Alu(alu, alu.operand(k)?),
                    _ => Self::AluX(alu),
                }
            }
            JMP if code == JMP | JA => Self::Jump(k),
            JMP => match (Test::decode(code & !(0x07 | X)).ok_or(opcode)?, code & X) {
                (Test::Eq, K) => Self::JumpEq { t, f, k },
                (test, K) => Self::JumpIf { test, t, f, k },
                (test, _) => Self::JumpIfX { test, t, f },
            },
            RET if code == RET | K => Self::Return(k != 0),
            RET if code == RET | A => Self::ReturnA,
            MISC if code == MISC | TAX => Self::AToX,
            MISC if code == MISC | TXA => Self::XToA,
            _ => return Err(opcode),
        })
    }

    /// The longest jump of the operation; `None` if it ends the program.
    pub(crate) fn reach(self) -> Option<u32> {
        match self {
            Self::Jump(k) => Some(k),
            Self::JumpEq { t, f, .. } | Self::JumpIf { t, f, .. } | Self::JumpIfX { t, f, .. } => {
                Some(t.max(f).into())
            }
            Self::Return(_) | Self::ReturnA => None,
            _ => Some(0),
        }
    }
}

/// Linux answers loads at negative offsets (`SKF_AD_OFF`) with data about a packet that is not in its bytes: `inbound`
/// uses one.
fn offset(k: u32) -> Result<u32, Fault> {
    if i32::try_from(k).is_ok() { Ok(k) } else { Err(Fault::Ancillary) }
}

fn memory(k: u32) -> Result<u8, Fault> {
    match u8::try_from(k) {
        Ok(word) if usize::from(word) < FILTER_MEMORY_WORDS => Ok(word),
        _ => Err(Fault::Memory(k)),
    }
}

impl Alu {
    fn decode(operation: u16) -> Option<Self> {
        Some(match operation {
            ADD => Self::Add,
            SUB => Self::Sub,
            MUL => Self::Mul,
            DIV => Self::Div,
            MOD => Self::Mod,
            OR => Self::Or,
            AND => Self::And,
            XOR => Self::Xor,
            LSH => Self::Lsh,
            RSH => Self::Rsh,
            _ => return None,
        })
    }

    /// The constant `k`, if the operation is defined for it.
    fn operand(self, k: u32) -> Result<u32, Fault> {
        match self {
            Self::Div | Self::Mod if k == 0 => Err(Fault::DivisionByZero),
            Self::Lsh | Self::Rsh if k >= u32::BITS => Err(Fault::Shift(k)),
            _ => Ok(k),
        }
    }

    /// The result; `None` for a division by zero.
    #[inline]
    pub(crate) fn apply(self, a: u32, b: u32) -> Option<u32> {
        Some(match self {
            Self::Add => a.wrapping_add(b),
            Self::Sub => a.wrapping_sub(b),
            Self::Mul => a.wrapping_mul(b),
            Self::Div => a.checked_div(b)?,
            Self::Mod => a.checked_rem(b)?,
            Self::Or => a | b,
            Self::And => a & b,
            Self::Xor => a ^ b,
            Self::Lsh => a.checked_shl(b).unwrap_or(0),
            Self::Rsh => a.checked_shr(b).unwrap_or(0),
        })
    }
}

impl Test {
    fn decode(condition: u16) -> Option<Self> {
        Some(match condition {
            JEQ => Self::Eq,
            JGT => Self::Gt,
            JGE => Self::Ge,
            JSET => Self::Set,
            _ => return None,
        })
    }

    #[inline]
    pub(crate) fn holds(self, a: u32, b: u32) -> bool {
        match self {
            Self::Eq => a == b,
            Self::Gt => a > b,
            Self::Ge => a >= b,
            Self::Set => a & b != 0,
        }
    }
}
