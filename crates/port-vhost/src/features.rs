//! The features that weir offers a driver, and the meaning of the driver's answer.

use virtio_bindings::virtio_config::{
    VIRTIO_F_ACCESS_PLATFORM, VIRTIO_F_IN_ORDER, VIRTIO_F_RING_PACKED, VIRTIO_F_VERSION_1,
};
use virtio_bindings::virtio_net::{
    VIRTIO_NET_F_CSUM, VIRTIO_NET_F_CTRL_RX, VIRTIO_NET_F_CTRL_VQ, VIRTIO_NET_F_GUEST_ANNOUNCE,
    VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_GUEST_ECN, VIRTIO_NET_F_GUEST_TSO4,
    VIRTIO_NET_F_GUEST_TSO6, VIRTIO_NET_F_HOST_ECN, VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6,
    VIRTIO_NET_F_MAC, VIRTIO_NET_F_MQ, VIRTIO_NET_F_MRG_RXBUF, VIRTIO_NET_F_MTU,
};
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use weir_ring::RingConfig;
use weir_vhost_user::{
    VHOST_USER_F_PROTOCOL_FEATURES, VHOST_USER_PROTOCOL_F_BACKEND_REQ,
    VHOST_USER_PROTOCOL_F_CONFIG, VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS,
    VHOST_USER_PROTOCOL_F_CROSS_ENDIAN, VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD,
    VHOST_USER_PROTOCOL_F_LOG_SHMFD, VHOST_USER_PROTOCOL_F_MQ, VHOST_USER_PROTOCOL_F_MTU,
    VHOST_USER_PROTOCOL_F_RARP, VHOST_USER_PROTOCOL_F_REPLY_ACK,
    VHOST_USER_PROTOCOL_F_RESET_DEVICE, VHOST_USER_PROTOCOL_F_STATUS,
    VHOST_USER_PROTOCOL_F_WEIR_CONTAINERS,
};
use weir_wire::{OffloadCaps, VnetHdr};

/// `VIRTIO_NET_F_GUEST_USO4`, `GUEST_USO6` and `HOST_USO` (virtio 1.3 §5.1.3).
const VIRTIO_NET_F_GUEST_USO4: u32 = 54;
const VIRTIO_NET_F_GUEST_USO6: u32 = 55;
const VIRTIO_NET_F_HOST_USO: u32 = 56;

/// The dirty log has to have a mark for each page that weir writes in buffers. The bit is the front end's, not the
/// driver's (vhost-user, "Migration").
const VHOST_F_LOG_ALL: u32 = 26;

const fn bits(features: &[u32]) -> u64 {
    let mut set = 0;
    let mut i = 0;
    while i < features.len() {
        set |= 1 << features[i];
        i += 1;
    }
    set
}

/// Device features. With `IN_ORDER`, a frame that waits for a full receiver delays the completion of all behind it,
/// by the driver's choice. The front end serves `CTRL_VQ`: see [`offered`]. `STATUS` is not offered: QEMU has the
/// link's state itself, and for others it never changes. `RING_RESET` is not offered: docs/design/front-ends.md#0055.
pub(crate) const OFFERED: u64 = bits(&[
    VIRTIO_F_VERSION_1,
    VIRTIO_F_RING_PACKED,
    VIRTIO_F_IN_ORDER,
    VIRTIO_RING_F_INDIRECT_DESC,
    VIRTIO_RING_F_EVENT_IDX,
    VIRTIO_NET_F_CSUM,
    VIRTIO_NET_F_GUEST_CSUM,
    VIRTIO_NET_F_MTU,
    VIRTIO_NET_F_GUEST_TSO4,
    VIRTIO_NET_F_GUEST_TSO6,
    VIRTIO_NET_F_GUEST_ECN,
    VIRTIO_NET_F_HOST_TSO4,
    VIRTIO_NET_F_HOST_TSO6,
    VIRTIO_NET_F_HOST_ECN,
    VIRTIO_NET_F_MRG_RXBUF,
    VIRTIO_NET_F_CTRL_VQ,
    VIRTIO_NET_F_CTRL_RX,
    VIRTIO_NET_F_GUEST_ANNOUNCE,
    VIRTIO_NET_F_MQ,
    VIRTIO_NET_F_GUEST_USO4,
    VIRTIO_NET_F_GUEST_USO6,
    VIRTIO_NET_F_HOST_USO,
    VHOST_F_LOG_ALL,
    VHOST_USER_F_PROTOCOL_FEATURES,
]);

/// Features that need a control queue. Front ends that serve one themselves have it for several queues; others hand it
/// to the back end, which has none.
const BY_CONTROL_QUEUE: u64 = bits(&[
    VIRTIO_NET_F_CTRL_VQ,
    VIRTIO_NET_F_CTRL_RX,
    VIRTIO_NET_F_GUEST_ANNOUNCE,
    VIRTIO_NET_F_MQ,
]);

/// Every device feature that weir offers to some front end.
pub(crate) const OFFERED_EVER: u64 = OFFERED | bits(&[VIRTIO_NET_F_MAC, VIRTIO_F_ACCESS_PLATFORM]);

/// The facts on which the offered features depend.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offer {
    pub(crate) queue_pairs: usize,
    /// weir states the device's configuration space.
    pub(crate) config: bool,
    pub(crate) access_platform: bool,
}

impl Offer {
    /// Device features.
    pub(crate) const fn features(self) -> u64 {
        let mut offered = if self.queue_pairs > 1 { OFFERED } else { OFFERED & !BY_CONTROL_QUEUE };
        if self.config {
            offered |= bits(&[VIRTIO_NET_F_MAC]);
        }
        if self.access_platform {
            offered |= bits(&[VIRTIO_F_ACCESS_PLATFORM]);
        }
        offered
    }

    /// Protocol features.
    pub(crate) const fn protocol_features(self) -> u64 {
        let config = bits(&[VHOST_USER_PROTOCOL_F_CONFIG]);
        if self.config { PROTOCOL_OFFERED | config } else { PROTOCOL_OFFERED }
    }
}

/// Protocol features. In-band notifications are missing: a kick is an eventfd that a worker sleeps on, never a message.
/// `BACKEND_REQ` is for user-mode Linux, whose device has no interrupt without it (its rings ask for the timer's); weir
/// has no request to make. `CROSS_ENDIAN` is offered so that front ends report guests that weir does not serve.
pub(crate) const PROTOCOL_OFFERED: u64 = bits(&[
    VHOST_USER_PROTOCOL_F_MQ,
    VHOST_USER_PROTOCOL_F_LOG_SHMFD,
    VHOST_USER_PROTOCOL_F_RARP,
    VHOST_USER_PROTOCOL_F_REPLY_ACK,
    VHOST_USER_PROTOCOL_F_MTU,
    VHOST_USER_PROTOCOL_F_BACKEND_REQ,
    VHOST_USER_PROTOCOL_F_CROSS_ENDIAN,
    VHOST_USER_PROTOCOL_F_RESET_DEVICE,
    VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS,
    VHOST_USER_PROTOCOL_F_STATUS,
    VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD,
    VHOST_USER_PROTOCOL_F_WEIR_CONTAINERS,
]);

/// Every protocol feature that weir offers to some front end.
pub(crate) const PROTOCOL_OFFERED_EVER: u64 =
    PROTOCOL_OFFERED | bits(&[VHOST_USER_PROTOCOL_F_CONFIG]);

/// A set of acknowledged device features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Features(pub u64);

impl Features {
    fn has(self, feature: u32) -> bool {
        self.0 & 1 << feature != 0
    }

    /// Rings start disabled and are switched by `SET_VRING_ENABLE`; without this bit they start
    /// enabled (vhost-user, "Ring states").
    pub(crate) fn protocol_features(self) -> bool {
        self.has(VHOST_USER_F_PROTOCOL_FEATURES)
    }

    /// The configuration of a ring of `size` entries.
    pub(crate) fn ring(self, size: u16) -> RingConfig {
        RingConfig {
            size,
            event_idx: self.has(VIRTIO_RING_F_EVENT_IDX),
            indirect: self.has(VIRTIO_RING_F_INDIRECT_DESC),
            packed: self.packed(),
            in_order: self.has(VIRTIO_F_IN_ORDER),
        }
    }

    pub(crate) fn packed(self) -> bool {
        self.has(VIRTIO_F_RING_PACKED)
    }

    /// The front end translates the driver's addresses, or expects weir to.
    pub(crate) fn access_platform(self) -> bool {
        self.has(VIRTIO_F_ACCESS_PLATFORM)
    }

    pub(crate) fn log_all(self) -> bool {
        self.has(VHOST_F_LOG_ALL)
    }

    /// A frame may span several receive chains.
    pub(crate) fn mergeable(self) -> bool {
        self.has(VIRTIO_NET_F_MRG_RXBUF)
    }

    /// Bytes of the header before each frame: a legacy driver without `MRG_RXBUF` has no
    /// `num_buffers` (virtio 1.2 §5.1.6.1).
    pub(crate) fn vnet_len(self) -> usize {
        if self.has(VIRTIO_F_VERSION_1) || self.mergeable() {
            VnetHdr::LEN
        } else {
            VnetHdr::LEN - 2
        }
    }

    /// The offloads that the driver accepts unfinished.
    pub(crate) fn receive_caps(self) -> OffloadCaps {
        let mut caps = OffloadCaps::NONE;
        let mut add = |present, cap| {
            if present {
                caps = caps | cap;
            }
        };
        add(self.has(VIRTIO_NET_F_GUEST_CSUM), OffloadCaps::CSUM);
        add(self.has(VIRTIO_NET_F_GUEST_TSO4), OffloadCaps::TSO4);
        add(self.has(VIRTIO_NET_F_GUEST_TSO6), OffloadCaps::TSO6);
        add(self.has(VIRTIO_NET_F_GUEST_ECN), OffloadCaps::TSO_ECN);
        let uso = self.has(VIRTIO_NET_F_GUEST_USO4) && self.has(VIRTIO_NET_F_GUEST_USO6);
        add(uso, OffloadCaps::USO);
        caps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_vhost_user::VHOST_USER_PROTOCOL_F_INBAND_NOTIFICATIONS;

    #[test]
    fn the_inband_notification_bit_is_never_offered() {
        assert_eq!(PROTOCOL_OFFERED & 1 << VHOST_USER_PROTOCOL_F_INBAND_NOTIFICATIONS, 0);
    }

    /// QEMU 7.2, 10.0 and 11.1 offer the bit to their guests, but report a reset to no vhost-user
    /// back end.
    #[test]
    fn ring_reset_is_never_offered() {
        let offer = Offer { queue_pairs: 8, config: true, access_platform: true };
        assert_eq!((offer.features() | OFFERED_EVER) & 1 << 40, 0);
    }

    #[test]
    fn spec_5_1_6_1_legacy_header_has_no_num_buffers() {
        assert_eq!(Features(0).vnet_len(), 10);
        assert_eq!(Features(1 << VIRTIO_NET_F_MRG_RXBUF).vnet_len(), 12);
        assert_eq!(Features(1 << VIRTIO_F_VERSION_1).vnet_len(), 12);
    }

    #[test]
    fn udp_segments_need_both_ip_versions() {
        let both = bits(&[VIRTIO_NET_F_GUEST_USO4, VIRTIO_NET_F_GUEST_USO6]);
        assert!(Features(both).receive_caps().contains(OffloadCaps::USO));
        let one = bits(&[VIRTIO_NET_F_GUEST_USO4]);
        assert!(!Features(one).receive_caps().contains(OffloadCaps::USO));
    }
}
