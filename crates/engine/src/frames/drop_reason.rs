//! The reasons why frames are dropped.

/// Declares why frames are dropped. Each reason is listed under the port that counts it, with its counter's name. The
/// reasons of another crate come first, and count at the sender.
macro_rules! drop_reasons {
    (
        $(#[$doc:meta])* pub enum $name:ident { $(#[$others_doc:meta])* $others:ident($inner:ty) }
        sender { $($(#[$sent_doc:meta])* $sent:ident = $sent_counter:literal,)+ }
        receiver { $($(#[$got_doc:meta])* $got:ident = $got_counter:literal,)+ }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $(#[$others_doc])*
            $others($inner),
            $($(#[$sent_doc])* $sent,)+
            $($(#[$got_doc])* $got,)+
        }

        weir_fabric::reasons! {
            enum Own { $($sent = $sent_counter,)+ $($got = $got_counter,)+ }
        }

        impl $name {
            pub(crate) const COUNT: usize = <$inner>::COUNT + Own::COUNT;
            const OWN: [Self; Own::COUNT] = [$(Self::$sent,)+ $(Self::$got),+];

            /// The reason's index in [`all`](Self::all).
            pub(crate) const fn index(self) -> usize {
                match self {
                    Self::$others(reason) => reason.index(),
                    $(Self::$sent => <$inner>::COUNT + Own::$sent.index(),)+
                    $(Self::$got => <$inner>::COUNT + Own::$got.index(),)+
                }
            }

            /// True if the receiver counts the drop.
            pub(crate) const fn is_receivers(self) -> bool {
                matches!(self, $(Self::$got)|+)
            }

            /// The counter's name.
            pub const fn as_str(self) -> &'static str {
                match self {
                    Self::$others(reason) => reason.as_str(),
                    $(Self::$sent => $sent_counter,)+
                    $(Self::$got => $got_counter,)+
                }
            }
        }
    };
}

drop_reasons! {
    /// The reasons why frames are dropped, each with a named counter.
    pub enum DropReason {
        /// The switch's rules refuse the frame.
        Fabric(weir_fabric::DropReason)
    }
    sender {
        /// The frame is shorter than an Ethernet header.
        FrameTooShort = "frame_too_short",
        /// The frame is longer than any frame that weir moves.
        FrameTooLong = "frame_too_long",
        /// weir cannot parse the headers of a GSO frame.
        GsoHeaders = "gso_headers",
        /// A filter of the sender refuses the frame.
        FilteredTx = "filtered_tx",
        /// The sender's security groups do not allow the frame.
        GroupOut = "group_out",
        /// The frame is longer than its sender's MTU allows.
        OverMtuTx = "over_mtu_tx",
        /// The sender has exceeded its limit of flooded broadcasts.
        StormBroadcast = "storm_broadcast",
        /// The sender has exceeded its limit of flooded multicasts.
        StormMulticast = "storm_multicast",
        /// The sender has exceeded its limit of flooded frames for unknown stations.
        StormUnknown = "storm_unknown",
        /// The frame is for an unknown station, and no port can receive the flooded frame.
        UnknownUnicast = "unknown_unicast",
        /// The sender's transmit queue is disabled: its frames are drained, not forwarded.
        TxDisabled = "tx_disabled",
        /// The receiver had no buffers for as long as a frame may wait.
        RxWaitedTooLong = "rx_waited_too_long",
        /// The sender's transmit queue stopped while the frame waited for its receiver, or the translation of the frame's
        /// address ended.
        TxStopped = "tx_stopped",
        /// A Xen guest's transmit request breaks the guest's protocol.
        BadRequest = "bad_request",
        /// The datagram came to an overlay without a header that weir knows, or with an invalid inner frame.
        BadEncapsulation = "bad_encapsulation",
        /// The frame was marked as congested on its way from another host, and its sender ignores marks (RFC 6040
        /// §4.2).
        MarkedNotEct = "marked_not_ect",
        /// The frame came for a network that the overlay does not serve.
        NetworkUnknown = "network_unknown",
        /// The frame came from a host that is no member of the frame's network.
        RemoteUnknown = "remote_unknown",
    }
    receiver {
        /// The receiver's queue is stopped or disabled.
        RxNotReady = "rx_not_ready",
        /// A filter of the receiver refuses the frame.
        FilteredRx = "filtered_rx",
        /// The receiver's security groups do not allow the frame.
        GroupIn = "group_in",
        /// The frame is longer than its receiver's MTU allows.
        OverMtuRx = "over_mtu_rx",
        /// The receiver's limit on received traffic is exceeded.
        PolicedRx = "policed_rx",
        /// The receiver had no buffers, and the frame could not wait.
        RxRingFull = "rx_ring_full",
        /// The receiver's buffer is smaller than the frame, and buffers cannot be merged.
        RxBufferTooSmall = "rx_buffer_too_small",
        /// The receiver lacks an offload, and weir cannot do the work for this frame.
        OffloadUnsupported = "offload_unsupported",
        /// The frame has no room for the VLAN tag that it must get.
        NoRoomForTag = "no_room_for_tag",
        /// The host's network device refused the frame.
        DeviceError = "device_error",
        /// The receiver, a Xen guest, has not asked for frames to this multicast address.
        MulticastUnwanted = "multicast_unwanted",
        /// The network has exceeded its limit of flooded frames.
        FloodBudget = "flood_budget",
        /// The frame is longer than the path to its remote allows, and cannot be cut.
        OverPathMtu = "over_path_mtu",
        /// There is no route to the frame's remote.
        RemoteUnreachable = "remote_unreachable",
        /// Too many answers in a second. The dropped frame is weir's own answer to a guest's request, or its message to
        /// a guest that a packet is too long.
        AnswerBudget = "answer_budget",
        /// Xen did not copy the frame: a page was not granted (counted at its guest), or the sender's memory was
        /// removed.
        CopyFailed = "copy_failed",
        /// A copy for a mirror found no room; counted at the mirror's port.
        MirrorLost = "mirror_lost",
    }
}

impl DropReason {
    /// Every reason.
    pub fn all() -> impl Iterator<Item = Self> {
        weir_fabric::DropReason::ALL.into_iter().map(Self::Fabric).chain(Self::OWN)
    }
}

impl From<weir_fabric::DropReason> for DropReason {
    fn from(reason: weir_fabric::DropReason) -> Self {
        Self::Fabric(reason)
    }
}
