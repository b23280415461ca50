//! The interpreter against libpcap's own, and programs that libpcap would never write.

use std::cell::OnceCell;

use pcap::{BpfProgram, Capture, Linktype};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use weir_limits::{FILTER_EXPRESSION_LEN_MAX, FILTER_INSTRUCTIONS_MAX, HEAD_LEN};

use crate::op::*;
use crate::*;

/// Typical filters: each kind of primitive, arithmetic, loops over headers, shifted offsets.
const EXPRESSIONS: &[&str] = &[
    "",
    "ip",
    "ip6",
    "arp",
    "vlan",
    "vlan 10 and tcp port 80",
    "vlan and vlan 20 and ip",
    "tcp port 80 and src net 10.0.0.0/8",
    "udp and not (dst port 53 or 67 or 68 or 123 or 161 or 514 or 1900)",
    "src host 10.0.0.1 or dst host 10.0.0.2",
    "host fd00::1",
    "net fd00::/16 and tcp",
    "ether host 52:54:00:00:00:01",
    "ether src 52:54:00:00:00:01 and broadcast",
    "multicast",
    "ip multicast",
    "ether proto 0x88cc",
    "icmp[icmptype] = icmp-echo",
    "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0",
    "tcp[20:4] = 0x47455420",
    "tcp[((tcp[12:1] & 0xf0) >> 2):4] = 0x47455420",
    "ip[6:2] & 0x1fff != 0",
    "ip[8] < 5",
    "ip[0] & 0xf > 5",
    "portrange 8000-8080",
    "greater 100",
    "less 64",
    "len - 14 != ip[2:2]",
    "len % 3 = 1 or len / 7 = 9 or len * 2 = 128 or len ^ 5 = 60",
    "ether[100:2] = 0x4142",
    "ether[200] = 0x43",
    "ether[0] & 1 = 0 and ip[16] >= 224",
    "ip proto \\sctp or ip proto \\udp",
    "mpls",
    "pppoes and ip",
    "geneve",
    "udp[ip[0] & 15] > udp[4]",
];

struct Oracle(Vec<(&'static str, Program, BpfProgram)>);

impl Oracle {
    fn new() -> Self {
        let capture = Capture::dead(Linktype::ETHERNET).unwrap();
        let both = |&text: &&'static str| {
            let ours = Program::compile(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            (text, ours, capture.compile(text, true).unwrap())
        };
        Self(EXPRESSIONS.iter().map(both).collect())
    }
}

thread_local! {
    static ORACLE: OnceCell<Oracle> = const { OnceCell::new() };
}

/// Bytes that have an effect: small numbers, header lengths, protocols, ports, addresses.
fn byte() -> impl Strategy<Value = u8> {
    prop_oneof![
        any::<u8>(),
        select(vec![0, 1, 4, 5, 6, 17, 10, 20, 53, 80, 0x45, 0x46, 0x4f, 0x50, 0x60, 0x41, 0x42]),
    ]
}

fn frame() -> impl Strategy<Value = Vec<u8>> {
    let ethertype = select(vec![0x0800_u16, 0x86dd, 0x0806, 0x8100, 0x88cc, 0x8847, 0x8864, 46]);
    let inner = select(vec![0x0800_u16, 0x86dd, 0x8100]);
    let mac = select(vec![[0x52, 0x54, 0, 0, 0, 1], [0xff; 6], [1, 0, 0x5e, 0, 0, 1]]);
    let address = select(vec![[10, 0, 0, 1], [10, 0, 0, 2], [192, 168, 0, 1], [224, 0, 0, 1]]);
    let port = select(vec![80_u16, 53, 67, 8000, 8081, 1900]);
    let body = prop::collection::vec(byte(), 0..300);
    let fields = (mac.clone(), mac, ethertype, inner, any::<bool>());
    let inside =
        (byte(), select(vec![6_u8, 17, 1, 132]), address.clone(), address, port.clone(), port);
    (fields, inside, body).prop_map(|((dst, src, ethertype, inner, follow), inside, mut body)| {
        let (first, protocol, from, to, from_port, to_port) = inside;
        let mut frame = [dst, src].concat();
        frame.extend(ethertype.to_be_bytes());
        if ethertype == 0x8100 {
            frame.extend([0, 10]);
            frame.extend(inner.to_be_bytes());
        }
        if follow && body.len() >= 40 {
            // An IPv4 header, of any length, and ports behind it.
            let header = usize::from(first & 15) * 4;
            body[0] = 0x40 | first & 15;
            (body[9], body[6], body[7]) = (protocol, 0, 0);
            body[12..16].copy_from_slice(&from);
            body[16..20].copy_from_slice(&to);
            if let Some(ports) = body.get_mut(header.max(20)..header.max(20) + 4) {
                ports[..2].copy_from_slice(&from_port.to_be_bytes());
                ports[2..].copy_from_slice(&to_port.to_be_bytes());
            }
        }
        frame.extend(body);
        frame
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn every_expression_means_what_libpcap_makes_of_it(frame in frame(), cut in any::<Index>()) {
        ORACLE.with(|oracle| {
            for (text, ours, theirs) in &oracle.get_or_init(Oracle::new).0 {
                for frame in [&frame[..], &frame[..cut.index(frame.len())]] {
                    let expected = if theirs.filter(frame) { Outcome::Match } else { Outcome::NoMatch };
                    let len = frame.len() as u32;
                    prop_assert_eq!(ours.run(frame, len), expected, "{}", text);
                }
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_packet_with_the_bytes_that_were_looked_at_has_the_same_outcomes(
        frame in frame(),
        changes in prop::collection::vec((any::<Index>(), byte()), 0..8),
        len in 0..400_usize,
        behind: u8,
    ) {
        ORACLE.with(|oracle| {
            let mut other = frame.clone();
            for (at, byte) in &changes {
                other[at.index(frame.len())] = *byte;
            }
            other.resize(len.max(14), 0);
            let front = |packet: &[u8], behind: u8| {
                let mut front: Front = [behind; HEAD_LEN];
                front.iter_mut().zip(packet).for_each(|(byte, there)| *byte = *there);
                front
            };
            let (of_frame, of_other) = (front(&frame, 0), front(&other, behind));
            for (text, program, _) in &oracle.get_or_init(Oracle::new).0 {
                let mut looked = Looked::default();
                let outcome = program.run_and_note(&frame, frame.len() as u32, &mut looked);
                prop_assert_eq!(outcome, program.run(&frame, frame.len() as u32));
                prop_assert!(!looked.is_same(&of_frame, &of_frame, 0) || text.is_empty());
                if looked.is_same(&of_frame, &of_other, other.len()) {
                    prop_assert_eq!(program.run(&other, other.len() as u32), outcome, "{}", text);
                }
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_front_says_what_the_whole_packet_says_or_that_it_is_too_short(
        frame in frame(),
        cut in any::<Index>(),
    ) {
        ORACLE.with(|oracle| {
            let (front, len) = (&frame[..cut.index(frame.len())], frame.len() as u32);
            for (text, program, _) in &oracle.get_or_init(Oracle::new).0 {
                let outcome = program.run(front, len);
                if outcome != Outcome::Beyond {
                    prop_assert_eq!(outcome, program.run(&frame, len), "{}", text);
                }
                // In the whole packet, no byte is beyond the front.
                prop_assert_ne!(program.run(&frame, len), Outcome::Beyond, "{}", text);
            }
            Ok(())
        })?;
    }

    #[test]
    fn instructions_of_any_kind_are_refused_or_end(
        instructions in prop::collection::vec(instruction(), 1..60),
        packet in prop::collection::vec(any::<u8>(), 0..200),
        longer in 0_u32..100,
    ) {
        if let Ok(program) = Program::new(&instructions) {
            program.run(&packet, packet.len() as u32 + longer);
        }
    }
}

/// An instruction, nearly always of a known kind, so that some programs are valid.
fn instruction() -> impl Strategy<Value = Instruction> {
    let code = prop_oneof![20 => select(OPCODES.to_vec()), 1 => any::<u16>()];
    let small = 0_u8..4;
    let k = prop_oneof![4 => 0_u32..20, 1 => any::<u32>()];
    (code, small.clone(), small, k).prop_map(|(code, jt, jf, k)| Instruction { code, jt, jf, k })
}

/// All opcodes.
const OPCODES: &[u16] = &[
    LD | W | ABS,
    LD | H | ABS,
    LD | B | ABS,
    LD | W | IND,
    LD | H | IND,
    LD | B | IND,
    LD | IMM,
    LD | MEM,
    LD | LEN,
    LDX | IMM,
    LDX | MEM,
    LDX | LEN,
    LDX | B | MSH,
    ST,
    STX,
    ALU | ADD | K,
    ALU | SUB | K,
    ALU | MUL | K,
    ALU | DIV | K,
    ALU | MOD | K,
    ALU | OR | K,
    ALU | AND | K,
    ALU | XOR | K,
    ALU | LSH | K,
    ALU | RSH | K,
    ALU | ADD | X,
    ALU | SUB | X,
    ALU | MUL | X,
    ALU | DIV | X,
    ALU | MOD | X,
    ALU | OR | X,
    ALU | AND | X,
    ALU | XOR | X,
    ALU | LSH | X,
    ALU | RSH | X,
    ALU | NEG,
    JMP | JA,
    JMP | JEQ | K,
    JMP | JGT | K,
    JMP | JGE | K,
    JMP | JSET | K,
    JMP | JEQ | X,
    JMP | JGT | X,
    JMP | JGE | X,
    JMP | JSET | X,
    RET | K,
    RET | A,
    MISC | TAX,
    MISC | TXA,
];

fn op(code: u16, k: u32) -> Instruction {
    Instruction { code, jt: 0, jf: 0, k }
}

fn jump(code: u16, k: u32, jt: u8, jf: u8) -> Instruction {
    Instruction { code: JMP | code, jt, jf, k }
}

const PACKET: [u8; 8] = [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88];

fn run(instructions: &[Instruction]) -> Outcome {
    Program::new(instructions).unwrap().run(&PACKET, PACKET.len() as u32)
}

/// True if A is `expected` after `instructions`.
fn leaves(instructions: &[Instruction], expected: u32) -> bool {
    let end = [jump(JEQ, expected, 0, 1), op(RET, 1), op(RET, 0)];
    run(&[instructions, &end].concat()) == Outcome::Match
}

#[test]
fn every_opcode_does_what_bpf_says() {
    let load = |k| op(LD | IMM, k);
    let load_x = |k| op(LDX | IMM, k);
    let cases: &[(&[Instruction], u32)] = &[
        (&[op(LD | W | ABS, 1)], 0x2233_4455),
        (&[op(LD | H | ABS, 1)], 0x2233),
        (&[op(LD | B | ABS, 7)], 0x88),
        (&[load_x(2), op(LD | W | IND, 2)], 0x5566_7788),
        (&[load_x(2), op(LD | H | IND, 1)], 0x4455),
        (&[load_x(2), op(LD | B | IND, 0)], 0x33),
        (&[load(7)], 7),
        (&[op(LD | LEN, 0)], 8),
        (&[op(LD | MEM, 3)], 0),
        (&[load(9), op(ST, 15), load(0), op(LD | MEM, 15)], 9),
        (&[load_x(9), op(MISC | TXA, 0)], 9),
        (&[op(LDX | LEN, 0), op(MISC | TXA, 0)], 8),
        (&[load_x(5), op(STX, 1), op(LD | MEM, 1)], 5),
        (&[load(5), op(ST, 1), op(LDX | MEM, 1), load(0), op(MISC | TXA, 0)], 5),
        (&[op(LDX | B | MSH, 4), op(MISC | TXA, 0)], 20),
        (&[load(6), op(MISC | TAX, 0), load(0), op(MISC | TXA, 0)], 6),
        (&[load(u32::MAX), op(ALU | ADD, 3)], 2),
        (&[load(2), op(ALU | SUB, 3)], u32::MAX),
        (&[load(1 << 31), op(ALU | MUL, 6)], 0),
        (&[load(17), op(ALU | DIV, 5)], 3),
        (&[load(17), op(ALU | MOD, 5)], 2),
        (&[load(0b1100), op(ALU | OR, 0b1010)], 0b1110),
        (&[load(0b1100), op(ALU | AND, 0b1010)], 0b1000),
        (&[load(0b1100), op(ALU | XOR, 0b1010)], 0b0110),
        (&[load(3), op(ALU | LSH, 31)], 1 << 31),
        (&[load(1 << 31), op(ALU | RSH, 31)], 1),
        (&[load(1), op(ALU | NEG, 0)], u32::MAX),
        (&[load_x(4), load(9), op(ALU | ADD | X, 0)], 13),
        (&[load_x(4), load(9), op(ALU | SUB | X, 0)], 5),
        (&[load_x(4), load(9), op(ALU | MUL | X, 0)], 36),
        (&[load_x(4), load(9), op(ALU | DIV | X, 0)], 2),
        (&[load_x(4), load(9), op(ALU | MOD | X, 0)], 1),
        (&[load_x(4), load(9), op(ALU | OR | X, 0)], 13),
        (&[load_x(8), load(9), op(ALU | AND | X, 0)], 8),
        (&[load_x(8), load(9), op(ALU | XOR | X, 0)], 1),
        (&[load_x(4), load(9), op(ALU | LSH | X, 0)], 144),
        (&[load_x(3), load(9), op(ALU | RSH | X, 0)], 1),
        (&[load_x(32), load(9), op(ALU | LSH | X, 0)], 0),
        (&[load_x(40), load(9), op(ALU | RSH | X, 0)], 0),
        (&[op(JMP | JA, 1), op(RET, 0), load(4)], 4),
    ];
    for (instructions, expected) in cases {
        assert!(leaves(instructions, *expected), "{instructions:?}");
        assert!(!leaves(instructions, expected.wrapping_add(1)), "{instructions:?}");
    }
}

#[test]
fn jumps_compare_without_sign() {
    for (a, b) in [(1, 1), (1, 2), (2, 1), (u32::MAX, 1), (6, 2), (4, 2)] {
        let holds = [(JEQ, a == b), (JGT, a > b), (JGE, a >= b), (JSET, a & b != 0)];
        for (test, holds) in holds {
            let expected = if holds { Outcome::Match } else { Outcome::NoMatch };
            let load = [op(LD | IMM, a), op(LDX | IMM, b)];
            for jump in [jump(test, b, 1, 0), jump(test | X, 0, 1, 0)] {
                let end = [jump, op(RET, 0), op(RET, 1)];
                assert_eq!(run(&[&load[..], &end].concat()), expected, "{test:#x} {a} {b}");
            }
        }
    }
}

#[test]
fn what_is_returned_counts_as_a_match_unless_it_is_zero() {
    assert_eq!(run(&[op(RET | K, 0)]), Outcome::NoMatch);
    assert_eq!(run(&[op(RET | K, 65_535)]), Outcome::Match);
    assert_eq!(run(&[op(RET | A, 0)]), Outcome::NoMatch);
    assert_eq!(run(&[op(LD | IMM, 1), op(RET | A, 0)]), Outcome::Match);
}

#[test]
fn a_division_by_zero_matches_nothing() {
    for code in [ALU | DIV | X, ALU | MOD | X] {
        assert_eq!(run(&[op(LD | IMM, 1), op(code, 0), op(RET, 1)]), Outcome::NoMatch);
    }
}

#[test]
fn a_load_beyond_the_front_is_told_from_one_beyond_the_packet() {
    let outcome = |code, k, len| {
        let program = Program::new(&[op(LDX | IMM, 2), op(code, k), op(RET, 1)]).unwrap();
        program.run(&PACKET, len)
    };
    for (code, last) in [
        (LD | W | ABS, 4),
        (LD | H | ABS, 6),
        (LD | B | ABS, 7),
        (LD | W | IND, 2),
        (LD | H | IND, 4),
        (LD | B | IND, 5),
        (LDX | B | MSH, 7),
    ] {
        assert_eq!(outcome(code, last, 8), Outcome::Match, "{code:#x}");
        assert_eq!(outcome(code, last + 1, 8), Outcome::NoMatch, "{code:#x}");
        assert_eq!(outcome(code, last + 1, 9), Outcome::Beyond, "{code:#x}");
        assert_eq!(outcome(code, last + 2, 9), Outcome::NoMatch, "{code:#x}");
        assert_eq!(outcome(code, i32::MAX as u32, 9), Outcome::NoMatch, "{code:#x}");
    }
}

#[test]
fn hostile_programs_are_refused_and_the_place_is_named() {
    let end = op(RET, 0);
    let fault = |at, fault| Err(InvalidProgram::Instruction { at, fault });
    let cases: &[(&[Instruction], Result<(), InvalidProgram>)] = &[
        (&[], Err(InvalidProgram::Length { len: 0 })),
        (&[op(LD | IMM, 0)], Err(InvalidProgram::NoReturn)),
        (&[jump(JEQ, 0, 0, 0)], Err(InvalidProgram::NoReturn)),
        (&[op(JMP | JA, 1), end], fault(0, Fault::Jump)),
        (&[op(JMP | JA, u32::MAX), end], fault(0, Fault::Jump)),
        (&[end, jump(JEQ, 0, 1, 0), end], fault(1, Fault::Jump)),
        (&[jump(JSET | X, 0, 0, 1), end], fault(0, Fault::Jump)),
        (&[op(ALU | DIV, 0), end], fault(0, Fault::DivisionByZero)),
        (&[op(ALU | MOD, 0), end], fault(0, Fault::DivisionByZero)),
        (&[op(ALU | LSH, 32), end], fault(0, Fault::Shift(32))),
        (&[op(ALU | RSH, u32::MAX), end], fault(0, Fault::Shift(u32::MAX))),
        (&[op(LD | W | ABS, 1 << 31), end], fault(0, Fault::Ancillary)),
        (&[op(LD | B | ABS, u32::MAX), end], fault(0, Fault::Ancillary)),
        (&[op(ST, 16), end], fault(0, Fault::Memory(16))),
        (&[op(STX, 256), end], fault(0, Fault::Memory(256))),
        (&[op(LD | MEM, 16), end], fault(0, Fault::Memory(16))),
        (&[op(LDX | MEM, u32::MAX), end], fault(0, Fault::Memory(u32::MAX))),
        (&[op(0xff, 0), end], fault(0, Fault::Opcode(0xff))),
    ];
    for (instructions, expected) in cases {
        assert_eq!(Program::new(instructions).map(|_| ()), *expected, "{instructions:?}");
    }
    let longest = vec![op(LD | IMM, 0); FILTER_INSTRUCTIONS_MAX - 1];
    assert!(Program::new(&[&longest[..], &[end]].concat()).is_ok());
    let len = FILTER_INSTRUCTIONS_MAX + 1;
    let longer = Program::new(&[&longest[..], &[end, end]].concat());
    assert_eq!(longer, Err(InvalidProgram::Length { len }));
}

#[test]
fn only_the_known_opcodes_are_taken() {
    for code in 0..=u16::MAX {
        let taken = Program::new(&[op(code, 1), op(RET, 0), op(RET, 0)]).is_ok();
        assert_eq!(taken, OPCODES.contains(&code), "{code:#x}");
    }
}

#[test]
fn what_libpcap_says_of_a_bad_expression_is_passed_on() {
    for (text, words) in [
        ("tcp prot 80", "syntax error"),
        ("host", "syntax error"),
        ("port nonsense", "unknown port 'nonsense'"),
        ("ether[1:3] = 0", "data size must be 1, 2, or 4"),
        ("inbound", "instruction 0: asks for what is not in the packet"),
        // The expression has a loop, over the headers.
        ("ip6 protochain 6", "jump back, or out of the program"),
        ("ip and arp", "expression rejects all packets"),
        ("ip\0", "internal null"),
    ] {
        let error = Program::compile(text).unwrap_err().to_string();
        assert!(error.contains(words), "{text}: {error}");
    }
    let len = FILTER_EXPRESSION_LEN_MAX + 1;
    assert_eq!(Program::compile(&" ".repeat(len)), Err(CompileError::TooLong { len }));
    assert!(Program::compile(&" ".repeat(len - 1)).is_ok());
}

#[test]
fn the_program_that_all_frames_match_is_the_one_that_libpcap_writes() {
    assert_eq!(Program::new(&crate::compile_here("").unwrap()), Ok(Program::all()));
    assert_eq!(Program::compile(""), Ok(Program::all()));
}

#[test]
fn an_instruction_is_the_same_after_a_way_as_bytes() {
    for instruction in crate::compile_here("tcp port 80 and ip[6] & 0x20 != 0").unwrap() {
        assert_eq!(Instruction::from_bytes(instruction.to_bytes()), instruction);
    }
}
