//! An instruction of classic BPF, and its opcodes (`bpf(4)`, `pcap/bpf.h`).

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
