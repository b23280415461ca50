//! Any instructions as a filter, on any packet: the filter is refused, or its program ends.
//!
//! The input is the number of instructions (a byte), the instructions (eight bytes each, as `struct bpf_insn` in
//! little endian), and the first bytes of the packet.
#![cfg_attr(fuzzing, no_main)]

use weir_filter::{Instruction, Outcome, Program};

weir_fuzz::target!(|input: &[u8]| {
    let [count, rest @ ..] = input else { return };
    let (code, front) = rest.split_at(rest.len().min(8 * usize::from(*count)));
    let instructions: Vec<_> = code
        .as_chunks()
        .0
        .iter()
        .map(|&[c0, c1, jt, jf, k0, k1, k2, k3]: &[u8; 8]| Instruction {
            code: u16::from_le_bytes([c0, c1]),
            jt,
            jf,
            k: u32::from_le_bytes([k0, k1, k2, k3]),
        })
        .collect();
    let Ok(program) = Program::new(&instructions) else {
        return;
    };
    let len = front.len() as u32;
    let whole = program.run(front, len);
    assert_ne!(whole, Outcome::Beyond, "there is nothing beyond");
    let part = program.run(&front[..front.len() / 2], len);
    assert!(part == whole || part == Outcome::Beyond);
});
