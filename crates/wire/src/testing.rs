//! Frames for tests, written field by field so that they share no code with the tested code.

use proptest::collection::vec;
use proptest::prelude::*;

use crate::ethernet::ethertype;
use crate::layers::protocol;
use crate::vnet::{self, VnetHdr};

/// A frame that a guest's stack would send with a partial checksum.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub tag: Option<u16>,
    pub network: Net,
    /// Source then destination address; IPv4 takes the first 4 bytes of each.
    pub addresses: [[u8; 16]; 2],
    pub transport: L4,
    pub ports: [u16; 2],
    pub payload: Vec<u8>,
}

#[derive(Clone, Debug)]
pub(crate) enum Net {
    /// Identification, and options in units of 4 bytes.
    V4 { id: u16, options: u8 },
    /// Extension headers: protocol and length in units of 8 bytes.
    V6 { extensions: Vec<(u8, u8)> },
}

#[derive(Clone, Debug)]
pub(crate) enum L4 {
    /// Options in units of 4 bytes.
    Tcp {
        seq: u32,
        flags: u8,
        options: u8,
    },
    Udp,
}

impl Default for Spec {
    /// TCP over IPv4 without options.
    fn default() -> Spec {
        Spec {
            tag: None,
            network: Net::V4 { id: 0x1234, options: 0 },
            addresses: [
                [10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
                [10, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2],
            ],
            transport: L4::Tcp { seq: 1000, flags: 0x10, options: 0 },
            ports: [40000, 443],
            payload: (0..5000).map(|n| (n * 7) as u8).collect(),
        }
    }
}

impl Spec {
    pub fn l3(&self) -> usize {
        if self.tag.is_some() { 18 } else { 14 }
    }

    pub fn l4(&self) -> usize {
        self.l3()
            + match &self.network {
                Net::V4 { options, .. } => 20 + usize::from(*options) * 4,
                Net::V6 { extensions } => {
                    40 + extensions.iter().map(|(_, words)| usize::from(*words) * 8).sum::<usize>()
                }
            }
    }

    pub fn hdr_len(&self) -> usize {
        self.l4()
            + match self.transport {
                L4::Tcp { options, .. } => 20 + usize::from(options) * 4,
                L4::Udp => 8,
            }
    }

    pub fn protocol(&self) -> u8 {
        match self.transport {
            L4::Tcp { .. } => protocol::TCP,
            L4::Udp => protocol::UDP,
        }
    }

    /// The frame; its transport checksum field holds the pseudo-header's sum.
    pub fn frame(&self) -> Vec<u8> {
        let mut frame = vec![0x52, 0x54, 0, 0, 0, 2, 0x52, 0x54, 0, 0, 0, 1];
        if let Some(tci) = self.tag {
            frame.extend(ethertype::VLAN.to_be_bytes());
            frame.extend(tci.to_be_bytes());
        }
        let l4_len = self.hdr_len() - self.l4() + self.payload.len();
        let [src, dst] = &self.addresses;
        let mut pseudo = Vec::new();
        match &self.network {
            Net::V4 { id, options } => {
                frame.extend(ethertype::IPV4.to_be_bytes());
                let total = (self.l4() - self.l3() + l4_len) as u16;
                frame.extend([0x45 + options, 0]);
                frame.extend(total.to_be_bytes());
                frame.extend(id.to_be_bytes());
                frame.extend([0x40, 0, 64, self.protocol(), 0, 0]);
                frame.extend(&src[..4]);
                frame.extend(&dst[..4]);
                frame.extend(std::iter::repeat_n(1, usize::from(*options) * 4));
                let checksum = !naive_sum(&frame[self.l3()..]);
                let at = self.l3() + 10;
                frame[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
                pseudo.extend(&src[..4]);
                pseudo.extend(&dst[..4]);
            }
            Net::V6 { extensions } => {
                frame.extend(ethertype::IPV6.to_be_bytes());
                frame.extend([0x60, 0, 0, 0]);
                let payload_len = (self.l4() - self.l3() - 40 + l4_len) as u16;
                frame.extend(payload_len.to_be_bytes());
                let mut next: Vec<u8> = extensions.iter().map(|(kind, _)| *kind).collect();
                next.push(self.protocol());
                frame.extend([next[0], 64]);
                frame.extend(src);
                frame.extend(dst);
                for ((_, words), next) in extensions.iter().zip(&next[1..]) {
                    frame.extend([*next, words - 1]);
                    frame.extend(std::iter::repeat_n(0, usize::from(*words) * 8 - 2));
                }
                pseudo.extend(src);
                pseudo.extend(dst);
            }
        }
        pseudo.extend((l4_len as u32).to_be_bytes());
        pseudo.extend(u32::from(self.protocol()).to_be_bytes());
        let partial = naive_sum(&pseudo).to_be_bytes();
        frame.extend(self.ports.iter().flat_map(|port| port.to_be_bytes()));
        match self.transport {
            L4::Tcp { seq, flags, options } => {
                frame.extend(seq.to_be_bytes());
                frame.extend([0, 0, 0, 1, (5 + options) << 4, flags, 0xff, 0xff]);
                frame.extend(partial);
                frame.extend([0, 0]);
                frame.extend(std::iter::repeat_n(1, usize::from(options) * 4));
            }
            L4::Udp => {
                frame.extend((l4_len as u16).to_be_bytes());
                frame.extend(partial);
            }
        }
        assert_eq!(frame.len(), self.hdr_len());
        frame.extend(&self.payload);
        frame
    }

    /// The header that an honest driver puts in front of it; with `gso_size` for a GSO frame.
    pub fn vnet(&self, gso_size: u16) -> VnetHdr {
        VnetHdr {
            flags: vnet::F_NEEDS_CSUM,
            gso_type: match (&self.network, &self.transport) {
                (Net::V4 { .. }, L4::Tcp { .. }) => vnet::GSO_TCPV4,
                (Net::V6 { .. }, L4::Tcp { .. }) => vnet::GSO_TCPV6,
                (_, L4::Udp) => vnet::GSO_UDP_L4,
            },
            hdr_len: self.hdr_len() as u16,
            gso_size,
            csum_start: self.l4() as u16,
            csum_offset: if self.protocol() == protocol::TCP { 16 } else { 6 },
            num_buffers: 0,
        }
    }
}

/// RFC 1071 word by word: the sum of big-endian words, folded.
pub(crate) fn naive_sum(bytes: &[u8]) -> u16 {
    let mut sum: u64 = 0;
    for pair in bytes.chunks(2) {
        sum += u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u64::from(*low));
    }
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// Frames of every shape weir knows, with up to `payload_max` bytes of payload.
pub(crate) fn specs(payload_max: usize) -> impl Strategy<Value = Spec> {
    let extensions = prop_oneof![
        Just(vec![]),
        (1u8..3).prop_map(|words| vec![(protocol::HOP_BY_HOP, words)]),
        (1u8..3).prop_map(|words| vec![(protocol::DESTINATION_OPTIONS, words)]),
        Just(vec![(protocol::HOP_BY_HOP, 1), (protocol::DESTINATION_OPTIONS, 2)]),
    ];
    let network = prop_oneof![
        (any::<u16>(), 0u8..=10).prop_map(|(id, options)| Net::V4 { id, options }),
        extensions.prop_map(|extensions| Net::V6 { extensions }),
    ];
    let transport = prop_oneof![
        (any::<u32>(), any::<u8>(), 0u8..=10).prop_map(|(seq, flags, options)| L4::Tcp {
            seq,
            flags,
            options
        }),
        Just(L4::Udp),
    ];
    let tag = proptest::option::of(any::<u16>());
    (
        tag,
        network,
        any::<[[u8; 16]; 2]>(),
        transport,
        any::<[u16; 2]>(),
        vec(any::<u8>(), 1..=payload_max),
    )
        .prop_map(|(tag, network, addresses, transport, ports, payload)| Spec {
            tag,
            network,
            addresses,
            transport,
            ports,
            payload,
        })
}

/// Values that are right, nearly right or arbitrary.
fn near(honest: u16) -> impl Strategy<Value = u16> {
    prop_oneof![Just(honest), honest.saturating_sub(3)..honest.saturating_add(3), any::<u16>()]
}

/// A frame, possibly damaged, with a header that may lie.
pub(crate) fn suspects() -> impl Strategy<Value = (Vec<u8>, VnetHdr)> {
    specs(40).prop_flat_map(|spec| {
        let honest = spec.vnet(1448);
        let damage = vec((0usize..140, any::<u8>()), 0..3);
        let gso_type = prop_oneof![Just(honest.gso_type), Just(0), any::<u8>()];
        let flags = prop_oneof![Just(1), any::<u8>()];
        let csum = (near(honest.csum_start), near(honest.csum_offset));
        (
            Just(spec.frame()),
            damage,
            gso_type,
            flags,
            csum,
            any::<u16>(),
            near(honest.hdr_len),
            0usize..200,
        )
            .prop_map(
                |(
                    mut frame,
                    damage,
                    gso_type,
                    flags,
                    (csum_start, csum_offset),
                    gso_size,
                    hdr_len,
                    cut,
                )| {
                    for (at, byte) in damage {
                        if let Some(hit) = frame.get_mut(at) {
                            *hit = byte;
                        }
                    }
                    if cut < 100 {
                        frame.truncate(cut);
                    }
                    let hdr = VnetHdr {
                        flags,
                        gso_type,
                        hdr_len,
                        gso_size,
                        csum_start,
                        csum_offset,
                        num_buffers: 0,
                    };
                    (frame, hdr)
                },
            )
    })
}
