//! LACPDUs (IEEE 802.1AX-2008 §5.4.2) and markers (§5.5.3): 124 bytes of a frame, each field at one place.

use weir_wire::{Mac, ethertype};

/// The destination of slow protocols (§5.2.1 table): a bridge never forwards it.
pub(in super::super) const SLOW_PROTOCOLS: Mac = Mac([0x01, 0x80, 0xc2, 0x00, 0x00, 0x02]);
/// LACP among the slow protocols, and its version.
const SUBTYPE: u8 = 1;
const VERSION: u8 = 1;
/// Markers among the slow protocols. The other end asks by one whether all frames before it have arrived.
const MARKER: u8 = 2;
/// The types of a marker and of its answer, their length, and their place in the frame.
const ASKS: u8 = 1;
const ANSWERS: u8 = 2;
const MARKER_LEN: u8 = 22;
const MARKER_AT: usize = 16;
/// The type and the length of each TLV, and its place in the frame.
const ACTOR: (u8, u8, usize) = (1, 20, 16);
const PARTNER: (u8, u8, usize) = (2, 20, 36);
const COLLECTOR: (u8, u8, usize) = (3, 16, 56);
const TERMINATOR: (u8, u8, usize) = (0, 0, 72);
/// The length of a frame.
pub(super) const LEN: usize = 124;

/// Flags of a port's state (§5.4.2.2 m).
pub(super) mod flag {
    pub(in super::super) const ACTIVE: u8 = 1;
    /// The port times its partner out after 3 s, not 90 s.
    pub(in super::super) const SHORT_TIMEOUT: u8 = 1 << 1;
    pub(in super::super) const AGGREGATES: u8 = 1 << 2;
    /// The port is in the aggregator that it should be in.
    pub(in super::super) const IN_SYNC: u8 = 1 << 3;
    pub(in super::super) const COLLECTS: u8 = 1 << 4;
    pub(in super::super) const DISTRIBUTES: u8 = 1 << 5;
    /// The port knows nothing of its partner.
    pub(in super::super) const DEFAULTED: u8 = 1 << 6;
    pub(in super::super) const EXPIRED: u8 = 1 << 7;
}

/// A port at one end of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Port {
    pub(super) system: (u16, [u8; 6]),
    pub(super) key: u16,
    /// Its priority and its number.
    pub(super) port: (u16, u16),
    pub(super) state: u8,
}

impl Port {
    /// True for the same port of the same aggregator, if both agree on whether it aggregates.
    pub(super) fn is(&self, other: &Self) -> bool {
        let identity = |it: &Self| (it.system, it.key, it.port, it.state & flag::AGGREGATES);
        identity(self) == identity(other)
    }

    fn to_bytes(self) -> [u8; 15] {
        let mut bytes = [0; 15];
        bytes[..2].copy_from_slice(&self.system.0.to_be_bytes());
        bytes[2..8].copy_from_slice(&self.system.1);
        bytes[8..10].copy_from_slice(&self.key.to_be_bytes());
        bytes[10..12].copy_from_slice(&self.port.0.to_be_bytes());
        bytes[12..14].copy_from_slice(&self.port.1.to_be_bytes());
        bytes[14] = self.state;
        bytes
    }

    fn from_bytes(bytes: &[u8; 15]) -> Self {
        let [p, q, a, b, c, d, e, f, k, l, m, n, o, r, state] = *bytes;
        Self {
            system: (u16::from_be_bytes([p, q]), [a, b, c, d, e, f]),
            key: u16::from_be_bytes([k, l]),
            port: (u16::from_be_bytes([m, n]), u16::from_be_bytes([o, r])),
            state,
        }
    }
}

/// A port's report about itself, and about the other end as the port knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pdu {
    pub(super) actor: Port,
    pub(super) partner: Port,
}

impl Pdu {
    /// The frame with this content.
    pub(super) fn to_frame(self, src: Mac) -> [u8; LEN] {
        let mut frame = [0; LEN];
        frame[..6].copy_from_slice(&SLOW_PROTOCOLS.0);
        frame[6..12].copy_from_slice(&src.0);
        frame[12..14].copy_from_slice(&ethertype::SLOW_PROTOCOLS.to_be_bytes());
        frame[14..16].copy_from_slice(&[SUBTYPE, VERSION]);
        for (kind, len, at) in [ACTOR, PARTNER, COLLECTOR, TERMINATOR] {
            frame[at..at + 2].copy_from_slice(&[kind, len]);
        }
        for ((.., at), port) in [(ACTOR, self.actor), (PARTNER, self.partner)] {
            frame[at + 2..at + 17].copy_from_slice(&port.to_bytes());
        }
        frame
    }

    /// Reads a frame; `None` unless it is an LACPDU whose parts have their lengths. A later version has more parts,
    /// behind these (§5.4.2.2 c).
    pub(super) fn from_frame(frame: &[u8]) -> Option<Self> {
        let frame = frame.first_chunk::<LEN>()?;
        let is_lacp = frame[..6] == SLOW_PROTOCOLS.0
            && frame[12..14] == ethertype::SLOW_PROTOCOLS.to_be_bytes()
            && frame[14] == SUBTYPE
            && frame[15] >= VERSION;
        let has_its_parts = [ACTOR, PARTNER, COLLECTOR]
            .iter()
            .all(|(kind, len, at)| frame[*at..at + 2] == [*kind, *len]);
        let port =
            |(.., at): (u8, u8, usize)| frame.get(at + 2..)?.first_chunk().map(Port::from_bytes);
        let pdu = Self { actor: port(ACTOR)?, partner: port(PARTNER)? };
        (is_lacp && has_its_parts).then_some(pdu)
    }
}

/// The answer to a frame that is a marker: the same with another type (§5.5.4.2.2).
pub(super) fn answer(frame: &[u8], src: Mac) -> Option<[u8; LEN]> {
    let mut frame = *frame.first_chunk::<LEN>()?;
    let asks = frame[..6] == SLOW_PROTOCOLS.0
        && frame[12..14] == ethertype::SLOW_PROTOCOLS.to_be_bytes()
        && frame[14] == MARKER
        && frame[15] >= VERSION
        && frame[MARKER_AT..MARKER_AT + 2] == [ASKS, MARKER_LEN];
    frame[6..12].copy_from_slice(&src.0);
    frame[MARKER_AT] = ANSWERS;
    asks.then_some(frame)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn port() -> impl Strategy<Value = Port> {
        let numbers = (any::<u16>(), any::<[u8; 6]>(), any::<u16>(), any::<(u16, u16)>());
        (numbers, any::<u8>()).prop_map(|((priority, system, key, port), state)| Port {
            system: (priority, system),
            key,
            port,
            state,
        })
    }

    /// The first frame of Linux' bonding driver (6.1, `lacp_rate fast`) that has no partner yet, without its end of zeros.
    const OF_LINUX: &str = "0180c2000002 525400111101 8809 0101\
         0114 ffff 525400111101 0009 00ff 0001 c7 000000\
         0214 ffff 000000000000 0001 00ff 0001 02 000000\
         0310";
    const OF_LINUX_MAC: Mac = Mac([0x52, 0x54, 0, 0x11, 0x11, 1]);

    #[test]
    fn a_frame_of_another_implementation_is_read_and_written() {
        let digits: Vec<u8> = OF_LINUX.bytes().filter(u8::is_ascii_hexdigit).collect();
        let digit = |it: u8| char::from(it).to_digit(16).unwrap() as u8;
        let mut frame: Vec<u8> =
            digits.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect();
        frame.resize(LEN, 0);
        let pdu = Pdu::from_frame(&frame).unwrap();
        assert_eq!(pdu.actor.system, (0xffff, OF_LINUX_MAC.0));
        assert_eq!((pdu.actor.key, pdu.actor.port, pdu.actor.state), (9, (255, 1), 0xc7));
        assert_eq!(pdu.partner.state, flag::SHORT_TIMEOUT);
        assert_eq!(pdu.to_frame(OF_LINUX_MAC)[..], frame);
        assert_eq!(Pdu::from_frame(&frame[..LEN - 1]), None, "cut off");
        // The destination, the ethertype, subtype, version, and the type and length of each part.
        for at in [5, 13, 14, 15, 16, 17, 36, 37, 56, 57] {
            let mut other = frame.clone();
            other[at] ^= other[at].max(1);
            assert_eq!(Pdu::from_frame(&other), None, "byte {at}");
        }
        frame[15] = 2;
        assert_eq!(Pdu::from_frame(&frame), Some(pdu), "a later version");
    }

    #[test]
    fn a_marker_is_answered_by_the_same_with_another_type() {
        let mut asked = [0; LEN];
        asked[..6].copy_from_slice(&SLOW_PROTOCOLS.0);
        asked[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
        // Port 7 of a system asks, for the ninth time.
        let marker = [0x88, 0x09, 2, 1, 1, 22, 0, 7, 2, 0, 0, 0, 0, 2, 0, 0, 0, 9, 0, 0, 0, 0];
        asked[12..34].copy_from_slice(&marker);
        let mut answered = asked;
        answered[6..12].copy_from_slice(&OF_LINUX_MAC.0);
        answered[16] = 2;
        assert_eq!(answer(&asked, OF_LINUX_MAC), Some(answered));
        assert_eq!(answer(&answered, OF_LINUX_MAC), None, "an answer has none");
        assert_eq!(answer(&asked[..LEN - 1], OF_LINUX_MAC), None, "cut off");
        assert_eq!(Pdu::from_frame(&asked), None);
        for at in [5, 13, 14, 15, 16, 17] {
            let mut other = asked;
            other[at] ^= other[at];
            assert_eq!(answer(&other, OF_LINUX_MAC), None, "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_and_any_bytes_are(
            actor in port(),
            partner in port(),
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let pdu = Pdu { actor, partner };
            let mut frame = pdu.to_frame(Mac([2; 6])).to_vec();
            frame.extend(&bytes);
            prop_assert_eq!(Pdu::from_frame(&frame), Some(pdu));
            let _ = (Pdu::from_frame(&bytes), answer(&bytes, Mac([2; 6])));
        }
    }
}
