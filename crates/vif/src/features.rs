//! Sets of virtio feature bits, with names.

use std::fmt;
use std::ops::{BitAnd, BitOr, Sub};

use virtio_bindings::{virtio_config, virtio_net, virtio_ring};
use weir_ring::RingConfig;
use weir_vhost_user::VHOST_USER_F_PROTOCOL_FEATURES;
use weir_wire::OffloadCaps;

/// A set of virtio feature bits (virtio 1.2 §5.1.3 and §6), under the specification's names.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Features(pub u64);

/// Generates the constants and the table of their names, so that each bit is written once.
macro_rules! features {
    ($($(#[doc = $doc:literal])+ $name:ident = $bit:expr;)+) => {
        impl Features {
            $($(#[doc = $doc])+ pub const $name: Features = Features(1 << $bit);)+

            const NAMES: &[(Features, &'static str)] =
                &[$((Features::$name, stringify!($name))),+];
        }
    };
}

features! {
    /// `VIRTIO_F_VERSION_1`; always required.
    VERSION_1 = virtio_config::VIRTIO_F_VERSION_1;
    /// `VIRTIO_F_RING_PACKED`.
    RING_PACKED = virtio_config::VIRTIO_F_RING_PACKED;
    /// `VIRTIO_F_IN_ORDER`.
    IN_ORDER = virtio_config::VIRTIO_F_IN_ORDER;
    /// `VIRTIO_F_INDIRECT_DESC`.
    INDIRECT_DESC = virtio_ring::VIRTIO_RING_F_INDIRECT_DESC;
    /// `VIRTIO_F_EVENT_IDX`.
    EVENT_IDX = virtio_ring::VIRTIO_RING_F_EVENT_IDX;
    /// `VIRTIO_NET_F_CSUM`: the device takes partial checksums.
    CSUM = virtio_net::VIRTIO_NET_F_CSUM;
    /// `VIRTIO_NET_F_GUEST_CSUM`: the driver takes partial checksums.
    GUEST_CSUM = virtio_net::VIRTIO_NET_F_GUEST_CSUM;
    /// `VIRTIO_NET_F_MTU`.
    MTU = virtio_net::VIRTIO_NET_F_MTU;
    /// `VIRTIO_NET_F_GUEST_TSO4`.
    GUEST_TSO4 = virtio_net::VIRTIO_NET_F_GUEST_TSO4;
    /// `VIRTIO_NET_F_GUEST_TSO6`.
    GUEST_TSO6 = virtio_net::VIRTIO_NET_F_GUEST_TSO6;
    /// `VIRTIO_NET_F_GUEST_ECN`.
    GUEST_ECN = virtio_net::VIRTIO_NET_F_GUEST_ECN;
    /// `VIRTIO_NET_F_HOST_TSO4`.
    HOST_TSO4 = virtio_net::VIRTIO_NET_F_HOST_TSO4;
    /// `VIRTIO_NET_F_HOST_TSO6`.
    HOST_TSO6 = virtio_net::VIRTIO_NET_F_HOST_TSO6;
    /// `VIRTIO_NET_F_HOST_ECN`.
    HOST_ECN = virtio_net::VIRTIO_NET_F_HOST_ECN;
    /// `VIRTIO_NET_F_MRG_RXBUF`: a frame may span several receive buffers.
    MRG_RXBUF = virtio_net::VIRTIO_NET_F_MRG_RXBUF;
    /// `VIRTIO_NET_F_MQ`; negotiated with more than one queue pair only.
    MQ = virtio_net::VIRTIO_NET_F_MQ;
    /// `VIRTIO_NET_F_GUEST_USO4`.
    GUEST_USO4 = virtio_net::VIRTIO_NET_F_GUEST_USO4;
    /// `VIRTIO_NET_F_GUEST_USO6`.
    GUEST_USO6 = virtio_net::VIRTIO_NET_F_GUEST_USO6;
    /// `VIRTIO_NET_F_HOST_USO`.
    HOST_USO = virtio_net::VIRTIO_NET_F_HOST_USO;
    /// `VHOST_USER_F_PROTOCOL_FEATURES`: vhost-user's own bit, negotiated whenever it is offered.
    PROTOCOL_FEATURES = VHOST_USER_F_PROTOCOL_FEATURES;
}

impl Features {
    /// No feature.
    pub const NONE: Features = Features(0);

    /// All features that this driver can use.
    pub const ALL: Features = {
        let mut all = 0;
        let mut i = 0;
        while i < Features::NAMES.len() {
            all |= Features::NAMES[i].0.0;
            i += 1;
        }
        Features(all)
    };

    /// Features that allow received frames longer than the MTU.
    pub(crate) const GUEST_GSO: Features = Features(
        Features::GUEST_TSO4.0
            | Features::GUEST_TSO6.0
            | Features::GUEST_USO4.0
            | Features::GUEST_USO6.0,
    );

    /// Pairs of a feature and the feature it needs (virtio 1.2 §5.1.3.1).
    const NEEDS: &[(Features, Features)] = &[
        (Features::GUEST_TSO4, Features::GUEST_CSUM),
        (Features::GUEST_TSO6, Features::GUEST_CSUM),
        (Features::GUEST_USO4, Features::GUEST_CSUM),
        (Features::GUEST_USO6, Features::GUEST_CSUM),
        (Features::HOST_TSO4, Features::CSUM),
        (Features::HOST_TSO6, Features::CSUM),
        (Features::HOST_USO, Features::CSUM),
        (Features::GUEST_ECN, Features::GUEST_CSUM),
        (Features::HOST_ECN, Features::CSUM),
    ];

    /// Returns true if this set contains all of `other`.
    pub const fn contains(self, other: Features) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns true if this set contains any of `other`.
    pub const fn intersects(self, other: Features) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the set without features whose needs are missing. A driver must not accept such
    /// features alone.
    pub(crate) fn consistent(self) -> Features {
        Features::NEEDS
            .iter()
            .filter(|(_, needed)| !self.contains(*needed))
            .fold(self, |kept, (feature, _)| kept - *feature)
    }

    /// Returns the configuration of a ring of `size` entries.
    pub fn ring(self, size: u16) -> RingConfig {
        RingConfig {
            size,
            event_idx: self.contains(Features::EVENT_IDX),
            indirect: self.contains(Features::INDIRECT_DESC),
            packed: self.contains(Features::RING_PACKED),
            in_order: self.contains(Features::IN_ORDER),
        }
    }

    /// Returns the offloads that a sent frame may leave to the device.
    pub fn transmit_caps(self) -> OffloadCaps {
        self.caps([
            (Features::CSUM, OffloadCaps::CSUM),
            (Features::HOST_TSO4, OffloadCaps::TSO4),
            (Features::HOST_TSO6, OffloadCaps::TSO6),
            (Features::HOST_ECN, OffloadCaps::TSO_ECN),
            (Features::HOST_USO, OffloadCaps::USO),
        ])
    }

    fn caps<const N: usize>(self, table: [(Features, OffloadCaps); N]) -> OffloadCaps {
        table
            .into_iter()
            .filter(|(feature, _)| self.contains(*feature))
            .fold(OffloadCaps::NONE, |caps, (_, cap)| caps | cap)
    }
}

impl BitOr for Features {
    type Output = Features;

    fn bitor(self, other: Features) -> Features {
        Features(self.0 | other.0)
    }
}

impl BitAnd for Features {
    type Output = Features;

    fn bitand(self, other: Features) -> Features {
        Features(self.0 & other.0)
    }
}

impl Sub for Features {
    type Output = Features;

    /// Removes the features of `other`.
    fn sub(self, other: Features) -> Features {
        Features(self.0 & !other.0)
    }
}

impl fmt::Display for Features {
    /// Writes names with `|` between them, bits without a name in hexadecimal, and `none` for the
    /// empty set.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = *self;
        let mut separator = "";
        for (feature, name) in Features::NAMES {
            if self.contains(*feature) {
                write!(out, "{separator}{name}")?;
                separator = "|";
                left = left - *feature;
            }
        }
        match (left.0, separator) {
            (0, "") => out.write_str("none"),
            (0, _) => Ok(()),
            (bits, _) => write!(out, "{separator}{bits:#x}"),
        }
    }
}

impl fmt::Debug for Features {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Features({self})")
    }
}
