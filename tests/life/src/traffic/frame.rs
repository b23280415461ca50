//! Numbered frames: UDP over IPv4, so that flows spread over queues. Their content shows any wrong byte.

use weir_wire::{Mac, checksum::ipv4_header_checksum};

const ETHERNET: usize = 14;
const UDP: usize = ETHERNET + 20;
const PAYLOAD: usize = UDP + 8;
/// "weir"; the flow and the number follow.
const MARK: [u8; 4] = *b"weir";
const FLOW: usize = PAYLOAD + 4;
const NUMBER: usize = FLOW + 2;
const FILL: usize = NUMBER + 8;
/// Upper bound of all frames' lengths.
const LONGEST: usize = 1514;

/// Writes frame `number` of `flow` into `out`, whose content it replaces.
pub fn write(out: &mut Vec<u8>, from: Mac, to: Mac, flow: u16, number: u64) {
    // All lengths occur equally often.
    let len = 60 + (number.wrapping_mul(0x9e37_79b9) >> 7) as usize % (LONGEST - 60);
    out.clear();
    out.resize(len, number as u8);
    out[..6].copy_from_slice(&to.0);
    out[6..12].copy_from_slice(&from.0);
    out[12..14].copy_from_slice(&[8, 0]);
    let ip = &mut out[ETHERNET..UDP];
    ip.fill(0);
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&((len - ETHERNET) as u16).to_be_bytes());
    ip[8..10].copy_from_slice(&[64, 17]);
    ip[12..16].copy_from_slice(&[10, 78, from.0[4], from.0[5]]);
    ip[16..20].copy_from_slice(&[10, 78, to.0[4], to.0[5]]);
    let checksum = ipv4_header_checksum(ip);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    let udp = &mut out[UDP..PAYLOAD];
    udp[..2].copy_from_slice(&(1024 + flow).to_be_bytes());
    udp[2..4].copy_from_slice(&9_u16.to_be_bytes());
    udp[4..6].copy_from_slice(&((len - UDP) as u16).to_be_bytes());
    udp[6..].fill(0);
    out[PAYLOAD..FLOW].copy_from_slice(&MARK);
    out[FLOW..NUMBER].copy_from_slice(&flow.to_be_bytes());
    out[NUMBER..FILL].copy_from_slice(&number.to_be_bytes());
}

/// Content of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// Frame `number` of flow `flow`.
    Numbered {
        /// Number of the flow.
        flow: u16,
        /// Number of the frame.
        number: u64,
    },
    /// A numbered frame whose bytes were changed.
    Corrupt,
    /// Another program's frame, or one for another guest.
    Other,
}

/// Reads `frame`, received by `to`.
pub fn read(frame: &[u8], to: Mac, expected: &mut Vec<u8>) -> Read {
    if frame.len() < FILL || frame[PAYLOAD..FLOW] != MARK || frame[..6] != to.0 {
        return Read::Other;
    }
    let flow = u16::from_be_bytes([frame[FLOW], frame[FLOW + 1]]);
    let number = frame[NUMBER..FILL].try_into().map_or(0, u64::from_be_bytes);
    let from = frame[6..12].try_into().map_or(Mac([0; 6]), Mac);
    write(expected, from, to, flow, number);
    if expected == frame { Read::Numbered { flow, number } } else { Read::Corrupt }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_read_as_it_was_written_and_any_other_byte_is_seen() {
        let (from, to) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
        let (mut frame, mut scratch) = (Vec::new(), Vec::new());
        for number in [0, 1, 255, 70_000, u64::MAX] {
            write(&mut frame, from, to, 7, number);
            assert!((60..LONGEST).contains(&frame.len()));
            assert_eq!(read(&frame, to, &mut scratch), Read::Numbered { flow: 7, number });
            assert_eq!(read(&frame, from, &mut scratch), Read::Other);
            let last = frame.len() - 1;
            for at in [13, 30, FILL, last] {
                frame[at] ^= 1;
                assert_eq!(read(&frame, to, &mut scratch), Read::Corrupt, "byte {at}");
                frame[at] ^= 1;
            }
        }
    }
}
