//! Every bound in weir, in one place, with assertions on how they relate.
//!
//! Units come last in a name (`_ns`, `_bytes`, `_max`). A bound that a guest or a front end can
//! run into has a named error or a named drop counter where it is enforced.

mod addresses;

pub use addresses::*;

/// Most memory regions one front end may share (vhost-user `CONFIGURE_MEM_SLOTS`; QEMU's own limit).
pub const MEM_SLOTS_MAX: usize = 509;
/// Most regions in one `SET_MEM_TABLE` message (vhost-user spec, `VHOST_MEMORY_BASELINE_NREGIONS`).
pub const MEM_TABLE_REGIONS_MAX: usize = 8;
/// Bytes that the regions of one front end may have together where nothing is configured (`memory_max`):
/// more than a guest has, and far less than what would keep other guests out.
pub const MEMORY_MAX_DEFAULT: u64 = 256 << 30;
/// Smallest and largest `memory_max` (bytes).
pub const MEMORY_MAX_MIN: u64 = 1 << 20;
/// See [`MEMORY_MAX_MIN`].
pub const MEMORY_MAX_MAX: u64 = 8 << 40;
/// Memory tables that one front end may have mapped at a time: a new one is mapped before the old one goes.
pub const MEM_TABLES_MAX: usize = 2;
/// Bytes of memory that all front ends together may have mapped. The rest of the address space is weir's: with
/// less of it, a thread or a large allocation fails, and that would end the switch.
pub const MEMORY_TOTAL_MAX: u64 = 24 << 40;
/// Addresses that a process has on x86-64 and on arm64 (`TASK_SIZE`).
pub const ADDRESS_SPACE_LEN: u64 = 1 << 47;
/// Regions that all front ends together may have mapped: half of what a process may have of mappings
/// (`vm.max_map_count`, 65530). The other half is weir's own, and for the repair of regions that were truncated.
pub const MEM_REGIONS_TOTAL_MAX: usize = 32_000;
/// Memory (bytes) and regions that each interface may map whatever all others have mapped, as many interfaces as there may
/// be: the regions of a memory table, and of the one that replaces it.
pub const MEMORY_FLOOR: u64 = 8 << 30;
/// See [`MEMORY_FLOOR`].
pub const MEM_REGIONS_FLOOR: usize = MEM_TABLES_MAX * MEM_TABLE_REGIONS_MAX;
/// Of the memory and the regions that are for the interfaces there are, one part in so many is split evenly among them:
/// nobody else gets an interface's share. The rest is for who comes first.
pub const MEMORY_SHARED_PART: u64 = 2;
/// Most file systems in `memory_filesystems`.
pub const MEMORY_FILE_SYSTEMS_MAX: usize = 16;
/// Largest `/proc/self/mountinfo` that is read (bytes): thousands of mounts.
pub const MOUNTINFO_BYTES_MAX: u64 = 4 << 20;
/// Kicks that bring nothing, beyond one for each frame, after which a ring's kicks are ignored for [`VAIN_KICKS_PAUSE_NS`]:
/// each is a wake-up of a worker that others pay for. More than a driver makes while it finds out that nobody needs them.
pub const VAIN_KICKS_MAX: u8 = 64;
/// For how long (ns). A frame that its guest sends then, after it sent none for long, waits so long at most.
pub const VAIN_KICKS_PAUSE_NS: u64 = 1_000_000;
/// What a front end's thread does at once (ns), before threads that wait for its processor: the kernel would let them wait
/// for some milliseconds. A message may take longer: mapping memory is one.
pub const SESSION_TURN_NS: u64 = 200_000;
/// What the sessions of one interface may take of a processor, in percent: to set up a guest takes some milliseconds
/// once. More of it would be others' time: workers and sessions share processors.
pub const SESSION_CPU_PERCENT: u64 = 5;
/// The same of the sessions of all interfaces that are being held back for it: many front ends that flood at once share
/// this, so that they take no more of the machine than a few.
pub const SESSIONS_CPU_PERCENT: u64 = 20;
/// What sessions of one interface may take at once (ns): to set up a front end with eight queues takes one millisecond. Each
/// of many interfaces can take it at the same time, and again after a tenth of a second.
pub const SESSION_CPU_BURST_NS: u64 = 5_000_000;
/// Front ends of one socket that may come one after the other without a pause, and then so many a second: each costs a
/// thread, and all of the manager's time that others wait for.
pub const SESSIONS_AT_ONCE_MAX: u32 = 32;
/// See [`SESSIONS_AT_ONCE_MAX`].
pub const SESSIONS_PER_SEC_MAX: u64 = 10;
/// How long (ns) a front end waits that comes while another one is there, before it is turned away: the other one may
/// be its own predecessor, at its end.
pub const SESSION_GRACE_NS: u64 = 500_000_000;
/// How long (ns) is waited for a session to end. Longer is as if it never ended: its thread is in the hands of a
/// descriptor.
pub const SESSION_END_NS: u64 = 5_000_000_000;
/// How long (ns) the close of a descriptor that somebody has sent may take before a signal cuts it short.
pub const FOREIGN_CLOSE_NS_MAX: u64 = 100_000_000;
/// Most descriptors of one party that are handed over and not closed yet; with more, nothing is taken from that party.
/// A message has 253 at most.
pub const FOREIGN_CLOSES_MAX: usize = 64;
/// How long (ns) a front end may leave a message half sent, or a reply unread that its socket has no room for. A descriptor in
/// flight meanwhile can be the front end's end of this very connection, which then never closes.
pub const SESSION_STALL_NS: u64 = 5_000_000_000;
/// How long (ns) a socket rests after `accept` has failed, for want of descriptors for example.
pub const ACCEPT_PAUSE_NS: u64 = 100_000_000;
/// Messages of one kind about one port that are logged in a [`LOG_PERIOD_NS`]. Whoever makes more of them has said
/// enough, and a disk is everybody's.
pub const LOG_LINES_MAX: u32 = 5;
/// See [`LOG_LINES_MAX`] (ns).
pub const LOG_PERIOD_NS: u64 = 60_000_000_000;
/// Lines about all ports together that are logged in a second, after [`LOG_LINES_AT_ONCE_MAX`] at once: with many front ends each
/// one's five a minute are still a flood.
pub const LOG_LINES_PER_SEC_MAX: u64 = 4;
/// See [`LOG_LINES_PER_SEC_MAX`].
pub const LOG_LINES_AT_ONCE_MAX: u64 = 8;
/// Descriptors that the switch is to have: it raises its limit as far as that, or as it may.
pub const DESCRIPTORS_MAX: u64 = 1 << 20;
/// Descriptors that no guest may have, of a limit that has four times as many: connections of the control socket, those
/// that are told that there is no place, and what a request opens.
pub const DESCRIPTORS_RESERVED: u64 = 96;
/// Descriptors that a switch takes without interfaces, about: sockets, timers and events of its threads.
pub const DESCRIPTORS_OF_SWITCH: u64 = 32;
/// Descriptors of a front end beside those of its rings: its connection, and the event that ends it.
pub const DESCRIPTORS_OF_GUEST: u64 = 2;
/// Regions of memory that a guest has, usually, of which a keeper has descriptors.
pub const KEPT_REGIONS_USUAL: u64 = 4;
/// Descriptors that are to be left before a front end is let in, or an interface is added: as many as a message brings.
pub const DESCRIPTORS_BEFORE_GUEST: u64 = VHOST_USER_FDS_MAX as u64;
/// From so many percent on a bound is named in the table of `weir stats`.
pub const LIMIT_SHOWN_PERCENT: u64 = 80;
/// How long (ns) a ring has been in service before it is said to serve nobody: its first kick may be under way.
pub const SILENT_NS_MIN: u64 = 1_000_000_000;
/// Kicks of a ring in which nothing ever was, before that is said: monitors of virtual machines kick at each start, and weir
/// itself does.
pub const SILENT_KICKS_MIN: u64 = 8;
/// The user that weir becomes where nobody says which and none is called `weir`, and the 15 after it: of systemd's
/// range for services without a user of their own (61,184 to 65,519), so that nothing else is likely to have it.
pub const SANDBOX_UID: u32 = 64_773;
/// Longest message between weir and its helper (bytes): one names a socket or processors, the first all interfaces of
/// uplinks and all networks that FRR is told of.
pub const HELPER_MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Longest text that says who keeps an interface (bytes): a word and a UUID, with room.
pub const OWNER_LEN_MAX: usize = 128;
/// Longest name of a descriptor that is kept (systemd: `FDNAME_MAX`).
pub const KEPT_NAME_LEN_MAX: usize = 255;
/// Most descriptors that are kept for one interface: two tables of memory, while one takes the other's place, three of
/// each ring, and a few of the session.
pub const KEPT_PER_OWNER_MAX: usize = 2 * MEM_SLOTS_MAX + 2 * 3 * VRINGS_MAX + 16;
/// Bytes of the state of one session: its rings, and a whole table of memory, as text.
pub const KEPT_STATE_BYTES_MAX: usize = 128 << 10;
/// Most bytes of what weir notes for the next one of its switch: all learned addresses, and all that was set.
pub const KEPT_NOTED_BYTES_MAX: u64 = 128 << 20;
/// How often the same message of a front end may have been weir's last before its session is not taken up again.
pub const KEPT_TRIES_MAX: u32 = 3;
/// How long (ns) a keeper may take to take a packet, or to give the next one, before weir, which serves guests, takes it for
/// gone.
pub const KEEPER_PATIENCE_NS: u64 = 200_000_000;
/// How long (ns) weir waits at its start for each answer of a keeper that is there. The keeper may have to hear the end of
/// a weir that was killed, on a machine that is busy; weir serves nobody yet.
pub const KEEPER_START_NS: u64 = 5_000_000_000;
/// How long (ns) weir waits between two attempts to reach its keeper, at first and at most.
pub const KEEPER_PAUSE_NS_MIN: u64 = 100_000_000;
/// See [`KEEPER_PAUSE_NS_MIN`].
pub const KEEPER_PAUSE_NS_MAX: u64 = 5_000_000_000;
/// How long (ns) at most frames wait at weir's start until all sessions that are taken up go on.
pub const KEPT_TAKE_UP_NS: u64 = 100_000_000;
/// How long (ns) a front end may take to go on after a reply of which it is not known whether it has been sent.
pub const KEPT_DOUBT_NS: u64 = 200_000_000;
/// How long (ns) sessions may take to come between two requests when weir leaves them to the next one.
pub const SESSION_LEAVE_NS: u64 = 200_000_000;
/// How long (ns) a new weir may take until all is ready that can be before the old one stops.
pub const UPGRADE_PREPARE_NS: u64 = 20_000_000_000;
/// And from then on, until it serves. Guests wait meanwhile.
pub const UPGRADE_TAKE_NS: u64 = 5_000_000_000;
/// How long a client waits for an upgrade: for two that fail, one after the other.
pub const UPGRADE_TIMEOUT_SECS: u64 = 60;
/// Largest virtqueue (virtio 1.2 §2.7: 32768).
pub const QUEUE_SIZE_MAX: u16 = 32768;
/// Entries of a virtqueue that `weir qemu-args` suggests, and that built-in guests have: the most that QEMU gives a
/// vhost-user device (`VIRTQUEUE_MAX_SIZE`; other back ends get 256 for TX).
pub const QUEUE_SIZE_SUGGESTED: u16 = 1024;
/// Most queue pairs of one interface.
pub const QUEUE_PAIRS_MAX: usize = 8;
/// Most virtqueues of one interface (RX and TX of each pair).
pub const VRINGS_MAX: usize = QUEUE_PAIRS_MAX * 2;

/// Most descriptors in one chain. Linux sends at most `MAX_SKB_FRAGS + 2` (19, or 47 with big
/// `CONFIG_MAX_SKB_FRAGS`); what is longer is refused before it costs time.
pub const CHAIN_LEN_MAX: usize = 256;
/// Most regions of memory that one buffer of a guest may lie in. An honest one lies in one, or where regions touch in two. A
/// front end that shares its memory page by page would else have each burst take millions of pieces.
pub const BUFFER_PIECES_MAX: usize = 4;
/// Largest frame weir moves, without the virtio header: a 64 KiB GSO packet plus Ethernet and VLAN headers.
pub const FRAME_LEN_MAX: u32 = 65_535 + 14 + 4;
/// Smallest frame: an Ethernet header. Guests may send runts below 60 bytes; no wire pads them here.
pub const FRAME_LEN_MIN: u32 = 14;
/// Bytes of a frame's front that are copied out once, checked, and delivered from that copy:
/// Ethernet (14) + VLAN (4) + IPv6 (40) + TCP with all options (60) = 118, rounded up.
pub const HEAD_LEN: usize = 128;
/// Most frames taken from one queue before the worker looks at the next.
pub const BURST_MAX: usize = 64;
/// A burst from a guest's queue ends with the frame that makes it as long as this (bytes): some tens of
/// microseconds of copying, in which other queues and deadlines wait.
pub const BURST_BYTES_MAX: u64 = 256 << 10;
/// Most receive buffers one frame may span (`VIRTIO_NET_F_MRG_RXBUF`): a 64 KiB frame in 1 KiB buffers.
pub const RX_MERGE_MAX: usize = 68;

/// Bytes of a page as Xen's ring protocols and grants count them (`XEN_PAGE_SHIFT`), whatever the
/// processor's pages are.
pub const XEN_PAGE_LEN: usize = 4096;
/// Most pages of one Xen ring (`max-ring-page-order` of Linux's back ends that have it: 4).
pub const XEN_RING_PAGES_MAX: usize = 16;
/// Most slots of a Xen guest's packet after its first one: the `XEN_NETIF_NR_SLOTS_MIN` of
/// `public/io/netif.h`, which Linux's netback takes beside the first. A longer packet is dropped.
pub const NETIF_TX_FRAGS_MAX: usize = 18;
/// From so many slots after the first one on, a packet is an attack (Linux netback:
/// `FATAL_SKB_SLOTS_DEFAULT`).
pub const NETIF_TX_FRAGS_FATAL: usize = 20;
/// Most extra infos of one packet: one of each type (`XEN_NETIF_EXTRA_TYPE_*`).
pub const NETIF_EXTRAS_MAX: usize = 5;

/// Most IPv6 extension headers that are walked to find the transport header.
pub const IPV6_EXT_HEADERS_MAX: usize = 8;
/// Most segments one GSO frame is cut into in software: 64 KiB at a payload of 32 bytes, below Linux's
/// smallest (`tcp_min_snd_mss`, 48, less 12 of timestamps). What is cut finer is an attack.
pub const GSO_SEGMENTS_MAX: u32 = 2048;
/// Longest packet that TCP segments are merged into (bytes), without a VLAN tag: IP's length fields
/// have room for it, and with a tag the buffers that a driver with TSO has (virtio 1.2 §5.1.6.3.1).
pub const GRO_LEN_MAX: u32 = 65_535 - 4;
/// Most frames of other flows in a row that are passed over in search of a flow's next segment. Linux
/// keeps as many flows open in each bucket (`MAX_GRO_SKBS`).
pub const GRO_FLOWS_BETWEEN_MAX: usize = 8;
/// After so many segments in a row that could not be merged, a receiver's list is not searched further:
/// its flows have one frame each, or it has no room.
pub const GRO_LONE_MAX: u8 = 8;
/// Most pieces of memory that one merged packet is copied from: as many as one frame may have.
pub const GRO_PIECES_MAX: usize = CHAIN_LEN_MAX;

/// Most ports of one switch (guests and uplinks).
pub const PORTS_MAX: usize = 1024;
/// Entries of the forwarding table where the configuration names no number; 256 KiB.
pub const FDB_ENTRIES_DEFAULT: usize = 16_384;
/// Most entries of the forwarding table; 16 MiB.
pub const FDB_ENTRIES_MAX: usize = 1 << 20;
/// Seconds without traffic after which a learned address is forgotten (IEEE 802.1Q default).
pub const FDB_AGE_SECS: u32 = 300;
/// Most addresses learned behind one port without a source-MAC check (an uplink), so that one port
/// can't use up the table.
pub const FDB_PER_PORT_MAX: u32 = 4096;
/// Most addresses learned behind one guest's interface. With the source-MAC check on it is one per
/// VLAN; without it this leaves room for a few nested guests.
pub const FDB_PER_VIF_MAX: u32 = 64;
/// While a loop is possible and there is traffic, how often moves of addresses are looked at (ns).
pub const LOOP_LOOK_NS: u64 = 100_000_000;
/// A loop is suspected where addresses moved so often between two ports from one look to the next, each way.
pub const LOOP_MOVES_MIN: u64 = 2;
/// And so often in a second, each way: honest stations move more seldom.
pub const LOOP_MOVES_PER_S: u64 = 20;
/// Two ports are asked for a loop no more often than that (ns).
pub const LOOP_AGAIN_NS: u64 = 1_000_000_000;
/// Suspicions that are looked into at a time: so many between uplinks, and so many others.
pub const LOOP_SUSPICIONS_MAX: usize = 4;
/// How often probes are sent out of each port for a suspicion, and how many alike at a time: a loop's queues are full, and
/// most frames get lost in them.
pub const LOOP_PROBES: usize = 3;
/// See [`LOOP_PROBES`].
pub const LOOP_PROBE_COPIES: usize = 4;
/// How often it is looked whether a probe has come back, and after how long (ns) each time.
pub const LOOP_PROBE_LOOKS: usize = 10;
/// See [`LOOP_PROBE_LOOKS`].
pub const LOOP_PROBE_LOOK_NS: u64 = 2_000_000;
/// After how long a port that is blocked for a loop is tried again (ns): the first time, and at most.
pub const LOOP_RETRY_NS: u64 = 10_000_000_000;
/// See [`LOOP_RETRY_NS`].
pub const LOOP_RETRY_NS_MAX: u64 = 600_000_000_000;
/// A thread that looks for a loop and does not end for so long (ns) is left behind.
pub const LOOP_THREADS_END_NS: u64 = 1_000_000_000;
/// Most networks of one switch that are no VLANs.
pub const NETWORKS_MAX: usize = 4096;
/// What part of the table the addresses that are learned behind uplinks in one network take at most, so that one tenant's
/// traffic leaves room for others'.
pub const FDB_NETWORK_PART: usize = 16;
/// What part of the table the addresses behind the port of an overlay take at most.
pub const FDB_OVERLAY_PART: usize = 2;
/// Bytes by which the underlay's MTU exceeds that of guests: IPv4, UDP, VXLAN, and the Ethernet header of the guest's frame.
pub const OVERLAY_OVERHEAD_V4: u16 = 20 + 8 + 8 + 14;
/// The same over IPv6.
pub const OVERLAY_OVERHEAD_V6: u16 = 40 + 8 + 8 + 14;
/// VLANs of a trunk in which a guest that has moved is announced with a tag: no more than a burst has frames.
pub const ANNOUNCED_VLANS_MAX: usize = 64;
/// The largest DSCP (RFC 2474: six bits).
pub const DSCP_MAX: u8 = 63;
/// Most hosts that one network's frames are flooded to.
pub const OVERLAY_PEERS_MAX: usize = 256;
/// Most hosts of all networks together, a power of two: members and others that speak.
pub const OVERLAY_HOSTS_MAX: usize = 1 << 21;
/// Sockets by which an overlay sends, each with a port of its own: flows are told apart by it outside (ECMP, RSS).
pub const OVERLAY_SOURCE_PORTS: usize = 16;
/// Frames of an overlay's queue that may wait, in weir's memory, for receivers that are full: all are tried again in one
/// burst.
pub const OVERLAY_PARKED_MAX: usize = BURST_MAX;
/// Buffers of an overlay's queue, each with a message of up to 64 KiB: waiting frames hold at most as many as they are.
pub const OVERLAY_BUFFERS: usize = OVERLAY_PARKED_MAX + DATAGRAMS_RECEIVED_MAX;
/// Frames a second that one network floods to all of its peers where nothing is configured, and at once: each costs a
/// datagram for each peer.
pub const OVERLAY_FLOODS_PER_SEC_DEFAULT: u32 = 10_000;
/// Errors in a row of an overlay's socket, without a datagram, after which its port stops.
pub const OVERLAY_ERRORS_MAX: u32 = 64;
/// How often a host that gets frames is asked for its share of latency budgets (ns).
pub const OVERLAY_ASK_NS: u64 = 1_000_000_000;
/// One that says nothing is asked at twice the distance each time, so often: in the end each 16 s.
pub const OVERLAY_ASKS_DOUBLED: u32 = 4;
/// How long a share counts after it was given (ns).
pub const OVERLAY_SHARE_NS: u64 = 60_000_000_000;
/// Most messages that one call receives.
pub const DATAGRAMS_RECEIVED_MAX: usize = 32;
/// Most datagrams, and messages, that are gathered before they are sent.
pub const DATAGRAMS_MAX: usize = 256;
/// Bytes of a datagram that are copied: an overlay's header and a frame's front with a tag.
pub const DATAGRAM_FRONT_LEN_MAX: usize = 16 + HEAD_LEN + 4;
/// Room in the kernel for datagrams of an overlay's socket, each way (bytes).
pub const OVERLAY_SOCKET_BUFFER_LEN: usize = 4 << 20;
/// UDP ports of which the kernel's VXLAN devices that FRR looks at get the first free one: no frame passes them. Beyond
/// the ports that Linux gives to who asks for none.
pub const EVPN_DEVICE_PORT: u16 = 61_789;
/// How many there are.
pub const EVPN_DEVICE_PORTS: u16 = 8;
/// Changes that are read, or told to FRR, before others have their turn.
pub const EVPN_BATCH: usize = 256;
/// The least time between two batches (ns): a flood of routes gets a part of a processor.
pub const EVPN_PAUSE_NS: u64 = 5_000_000;
/// Room in the kernel for changes that were not read yet (bytes).
pub const EVPN_SOCKET_BUFFER_LEN: usize = 4 << 20;
/// How long (ns) what FRR has withdrawn serves on: FRR may be about to end, and is then seen to be gone.
pub const EVPN_WITHDRAWN_NS: u64 = 100_000_000;
/// How long (ns) what was known serves on while FRR is gone, as the restart time of BGP's graceful restart (RFC 4724,
/// FRR's default).
pub const EVPN_HOLD_NS: u64 = 120_000_000_000;
/// How long (ns) FRR may take, once it is back, to say anew what it had said before.
pub const EVPN_BACK_NS: u64 = 30_000_000_000;
/// How long (ns) bgpd may take, once VNIs have gone and come, to tell zebra of other hosts.
pub const EVPN_RESYNC_NS: u64 = 5_000_000_000;
/// How often in a row weir sees bgpd connected to a new zebra, at each [look](EVPN_LOOK_NS), before VNIs go and come.
pub const EVPN_RESYNC_LOOKS: u32 = 4;
/// How often (ns) weir looks for FRR while that is gone.
pub const EVPN_LOOK_NS: u64 = 500_000_000;
/// How soon (ns) an address that another host has taken is announced again at the earliest.
pub const EVPN_AGAIN_NS: u64 = 1_000_000_000;
/// When a weir that goes on with another one's networks withdraws what that has announced and it has not: guests that a
/// keeper has are back at once.
pub const EVPN_ADOPT_NS: u64 = 2_000_000_000;
/// IP addresses of other hosts' stations that are known, for each address that may be: IPv4, IPv6, and of its link.
pub const EVPN_OWNED_PER_ADDRESS: usize = 2;
/// What part of them one network has at most.
pub const EVPN_OWNED_PART: usize = 8;
/// IP addresses that are learned of one station here: IPv6 has several, temporary ones too (RFC 8981).
pub const EVPN_CLAIMS_PER_MAC: usize = 16;
/// IP addresses that are learned of stations here in one network.
pub const EVPN_CLAIMS_PER_NETWORK: usize = 1024;
/// And in all.
pub const EVPN_CLAIMS_MAX: usize = 16 * EVPN_CLAIMS_PER_NETWORK;
/// How long (ns) a station here has an IP address that it does not say again.
pub const EVPN_CLAIM_AGE_NS: u64 = 1_200_000_000_000;
/// How long (ns) an IP address that two stations claim is announced of neither.
pub const EVPN_CONTEST_NS: u64 = 60_000_000_000;
/// Claims of one network that wait to be looked at, and how many a second are.
pub const EVPN_SIGHTINGS_MAX: usize = 64;
/// See [`EVPN_SIGHTINGS_MAX`].
pub const EVPN_SIGHTINGS_PER_SEC: u64 = 200;
/// Sockets of an overlay that share what comes: one queue more is for what weir answers itself.
pub const OVERLAY_QUEUES_MAX: usize = QUEUE_PAIRS_MAX - 1;
/// Answers of an overlay's own to guests that wait to be sent, and how many a second there are in one network.
pub const OVERLAY_ANSWERS_MAX: usize = BURST_MAX;
/// See [`OVERLAY_ANSWERS_MAX`].
pub const OVERLAY_ANSWERS_PER_SEC: u64 = 10_000;
/// Entries of a receive indirection table (`ethtool -x`; the usual size in NICs, Dong 2011's vRSS).
pub const INDIRECTION_LEN: usize = 128;
/// Flows of one interface whose receive queue follows their transmit queue.
pub const STEERING_FLOWS_MAX: usize = 1024;
/// Most changes of receive queue, of such flows and of entries, that wait for a safe moment at a time.
pub const STEERING_CHANGES_MAX: usize = 32;
/// Seconds without a transmitted frame after which such a flow's place may be taken by another
/// (Linux `tun`: `TUN_FLOW_EXPIRE`).
pub const STEERING_FLOW_IDLE_SECS: u32 = 3;

/// Most filter rules of one port, both directions.
pub const FILTER_RULES_MAX: usize = 32;
/// Longest filter expression (bytes).
pub const FILTER_EXPRESSION_LEN_MAX: usize = 1024;
/// How long libpcap may take for one expression (s). A usual one takes a millisecond.
pub const FILTER_COMPILE_SECS: u64 = 2;
/// Address space of the process that libpcap runs in (MiB): the program and its libraries have 50 of it.
pub const FILTER_COMPILER_MIB: u64 = 256;
/// Answer of that process (bytes): a program, or libpcap's words.
pub const FILTER_ANSWER_LEN_MAX: usize = 1 + 8 * FILTER_INSTRUCTIONS_MAX;
/// Most instructions of one filter program (Linux and libpcap: `BPF_MAXINSNS`), and of all those of one
/// port and direction: a packet costs at most so many.
pub const FILTER_INSTRUCTIONS_MAX: usize = 4096;
/// Words of scratch memory that a filter program has (Linux and libpcap: `BPF_MEMWORDS`).
pub const FILTER_MEMORY_WORDS: usize = 16;
/// Bytes of a frame's front that a filter can see: one with an MTU of 1500 whole.
pub const FILTER_WINDOW_LEN: usize = 2048;

/// Captures at a time.
pub const CAPTURES_MAX: usize = 4;
/// Ports of one capture.
pub const CAPTURE_PORTS_MAX: usize = 16;
/// Ports that get copies of others' frames.
pub const MIRRORS_MAX: usize = 4;
/// Frames that one live trace follows.
pub const FOLLOWED_MAX: u32 = 1000;
/// Ports whose part in the way of such a frame is told, for a frame that goes to everybody.
pub const FOLLOWED_STEPS_MAX: usize = 64;
/// Rings of one capture: workers beyond share them.
pub const CAPTURE_LANES_MAX: usize = 8;
/// Bytes of such a ring: some milliseconds of small frames at the rate of one worker.
pub const CAPTURE_RING_LEN: usize = 8 << 20;

/// Most addresses and prefixes that a source guard is given for one guest: each costs every frame of that guest a
/// comparison.
pub const SOURCE_ADDRESSES_MAX: usize = 32;
/// Addresses that a guest may have by DHCP at a time, where a source guard learns them: one more takes the place of the
/// one that ends first.
pub const SNOOPED_LEASES_MAX: usize = 16;
/// Questions of a guest that DHCP may answer: with more than these under way, the oldest is forgotten.
pub const DHCP_QUESTIONS_MAX: usize = 4;
/// How long an answer may take (s): clients ask again after 64 s at most (RFC 2131 §4.1).
pub const DHCP_ANSWER_SECS: u32 = 64;
/// What a storm budget lets go at once: what its rate brings in so long a time (ns), and so many frames at least. ARP for
/// a subnet comes in a row.
pub const STORM_BURST_NS: u64 = 100_000_000;
/// See [`STORM_BURST_NS`].
pub const STORM_BURST_MIN: u64 = 64;
/// Frames of one sending queue that may wait, in the sender's own memory, for receivers that are full.
pub const PARKED_MAX: usize = 128;
/// How long such a frame may wait before it is dropped.
pub const PARKED_NS_MAX: u64 = 100_000_000;
/// Most frames read from one TAP queue, or packet socket, before the worker looks at the next: each
/// may be a 64 KiB GSO packet, so fewer than from a guest's ring.
pub const TAP_BURST_MAX: usize = 32;
/// Frames of one TAP queue that may wait, in weir's memory, for receivers that are full. All of them
/// are tried again in one burst.
pub const TAP_PARKED_MAX: usize = BURST_MAX;
/// Frame buffers of one TAP queue. One burst more than may wait: receivers that take nothing never
/// stop the others' frames.
pub const TAP_SLOTS: usize = TAP_PARKED_MAX + TAP_BURST_MAX;
/// Room in the kernel for one packet socket's frames, each way (bytes): some 60 GSO packets, where the
/// usual 208 KiB hold three.
pub const PACKET_SOCKET_BUFFER_LEN: usize = 4 << 20;
/// Frames of one AF_XDP queue that there is memory for, in each direction; its four rings have as many
/// entries, so that none of them is ever too short.
pub const XDP_FRAMES: u32 = 1024;
/// Frames of one AF_XDP queue that may wait, in its own memory, for receivers that are full. All of
/// them are tried again in one burst.
pub const XDP_PARKED_MAX: usize = BURST_MAX;
/// Smallest and largest piece of memory for one AF_XDP frame (bytes): the kernel takes powers of two
/// from 2048 to a page.
pub const XDP_CHUNK_LEN_MIN: u32 = 2048;
/// See [`XDP_CHUNK_LEN_MIN`].
pub const XDP_CHUNK_LEN_MAX: u32 = 4096;
/// Bytes that the kernel leaves free before a frame that arrives (`XDP_PACKET_HEADROOM`).
pub const XDP_HEADROOM_LEN: u32 = 256;
/// When frames that the kernel would not take at once are offered to it again (ns).
pub const XDP_SEND_RETRY_NS: u64 = 1_000_000;
/// How long opening waits for a queue whose former owner has just ended (ns): the kernel gives it back
/// in the background.
pub const XDP_BUSY_NS_MAX: u64 = 1_000_000_000;

/// Worker time that a port of weight 1 is given in a round (ns): about what two bursts of full-size
/// frames cost. Signed as the deficits that it is added to.
pub const SCHEDULE_QUANTUM_NS: i64 = 20_000;
/// Largest weight of a port: a round is as long as the weights of all who are ready, in quanta.
pub const WEIGHT_MAX: u16 = 100;
/// Most turns of a window constraint.
pub const WINDOW_LEN_MAX: u16 = 1000;
/// Shortest and longest period of a window constraint (ns).
pub const WINDOW_PERIOD_NS_MIN: u64 = 10 * DWCS_SLOT_NS;
/// See [`WINDOW_PERIOD_NS_MIN`].
pub const WINDOW_PERIOD_NS_MAX: u64 = 1_000_000_000;
/// Within this time deadlines of window constraints are equal (ns): about a burst's.
pub const DWCS_SLOT_NS: u64 = 10_000;
/// Slowest and fastest rate that a port may be limited to (bits/s).
pub const RATE_BITS_MIN: u64 = 64_000;
/// See [`RATE_BITS_MIN`].
pub const RATE_BITS_MAX: u64 = 1_000_000_000_000;
/// Most frames a second that a port may be limited to.
pub const RATE_PACKETS_MAX: u32 = 1_000_000_000;
/// Smallest and largest burst of a rate in bits/s (bytes). A frame that is longer passes a full bucket, and
/// what it lacks is owed.
pub const RATE_BURST_BYTES_MIN: u64 = 2048;
/// See [`RATE_BURST_BYTES_MIN`].
pub const RATE_BURST_BYTES_MAX: u64 = 1 << 32;
/// Largest burst of a rate in packets/s.
pub const RATE_BURST_PACKETS_MAX: u32 = 1 << 24;
/// Where no burst is set, it is what comes in this time (ns): as late as a worker may be without loss of
/// rate.
pub const RATE_BURST_NS_DEFAULT: u64 = 1_000_000;
/// The same for what a port receives (ns): there frames beyond it are lost, so that it has to take what a
/// sender has under way for some milliseconds.
pub const POLICE_BURST_NS_DEFAULT: u64 = 10_000_000;
/// A queue whose bucket is empty waits for what comes in this time (ns), or for one frame: more wake-ups
/// would cost more than they smooth.
pub const RATE_WAIT_NS: u64 = 100_000;

/// Largest latency budget a user may set.
pub const LATENCY_BUDGET_NS_MAX: u64 = 1_000_000_000;
/// Latency budget where the configuration says nothing.
pub const LATENCY_BUDGET_NS_DEFAULT: u64 = 250_000;
/// What a burst that a worker may be in the middle of when a hold ends takes of the budget at most (ns).
/// A queue whose burst took longer has fewer frames in the next ones: so long others wait
/// at most beside a guest that makes its frames dear.
pub const BURST_NS_MAX: u64 = 60_000;
/// Largest `rx_frames`: as many as the largest ring has buffers.
pub const RX_FRAMES_MAX: u16 = QUEUE_SIZE_MAX;

/// Bytes of the frames that fill a container where nobody says otherwise (Thakur 2014: one page).
pub const CONTAINER_BYTES_DEFAULT: u32 = 4096;
/// Largest `container_bytes`: some of the largest frames.
pub const CONTAINER_BYTES_MAX: u32 = 262_144;
/// Largest container in a guest's receive buffer (bytes, its virtio header included): its length field
/// has 16 bits.
pub const CONTAINER_LEN_MAX: usize = 65_535;

/// Largest vhost-user message body weir accepts. The largest one it knows is a full memory table
/// (8 + 8 * 32 bytes); the rest is room for `SET_CONFIG`-like messages that are refused politely.
pub const VHOST_USER_BODY_MAX: usize = 4096;
/// Most file descriptors with one message (one per region of a memory table).
pub const VHOST_USER_FDS_MAX: usize = 8;
/// Most bytes of replies that wait for a front end which doesn't read them.
pub const VHOST_USER_OUTBOUND_BYTES_MAX: usize = 16 * 1024;
/// How long weir's own front end waits for a back end to take a request and answer it.
pub const VHOST_USER_REPLY_NS_MAX: u64 = 5_000_000_000;
/// How long the thread that writes calls may spend in one pipe or socket of a front end, or in closing it, before
/// that is an error (ns). A write returns at once, whether there is room or not. The bound is the longest wait for
/// a CPU on a busy machine.
pub const CALL_STUCK_NS: u64 = 1_000_000_000;
/// What a call may take of the burst that it is in, at the sender's cost (ns): several times what one takes that
/// interrupts a virtual processor. What is beyond, the called port pays.
pub const CALL_NS_USUAL_MAX: u64 = 10_000;
/// What calls of one descriptor may take on average (ns), by the CPU clock of whoever calls. A front end whose calls take just this is
/// served on; a larger one would let it take more from its neighbours, a smaller one may end slow hosts' ports.
pub const CALL_NS_MAX: u64 = 100_000;
/// How much more they may take in all before the port stops (ns): what a front end can take once from others who share its
/// worker. Time that a host takes from weir's machine can look like a price; it is to be more than a few of its turns.
pub const CALL_DEBT_NS_MAX: u64 = 20_000_000;
/// For how long a port that was stopped for it stays so, whatever its front end does (ns): each start costs others one dear
/// call at least.
pub const CALL_PAUSE_NS: u64 = 1_000_000_000;
/// How long a port's memory may keep a worker waiting, beyond one part in [`BLOCKED_SHARE`] of all time (ns), before the
/// port stops. More would be noticed by all others of that worker; less would end guests whose host swaps now and then.
pub const BLOCKED_NS_MAX: u64 = 100_000_000;
/// A port may keep a worker waiting for one part in so many of all time. A port that was stopped for more stays so for as
/// many times the last wait.
pub const BLOCKED_SHARE: u64 = 100;
/// For how many calls after one that was dear the CPU clock is read before and after each.
pub const CALLS_WATCHED: u32 = 64;
/// Largest MTU that `NET_SET_MTU` or the configuration may set.
pub const MTU_MAX: u16 = 65_535;
/// Smallest MTU (IPv4 requires 68).
pub const MTU_MIN: u16 = 68;

/// Largest body of a request on the control socket: a configuration.
pub const CONTROL_REQUEST_BYTES_MAX: usize = CONFIG_BYTES_MAX as usize;
/// Largest head of a request: its first line and its headers.
pub const CONTROL_HEAD_BYTES_MAX: usize = 16 * 1024;
/// Most headers of a request.
pub const CONTROL_HEADERS_MAX: usize = 64;
/// Largest answer a client reads: the counters of [`PORTS_MAX`] ports with every queue, with room.
pub const CONTROL_RESPONSE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Most connections to the control socket at one time. One more takes the place of the one that has said nothing
/// for longest, of the user who has most of them.
pub const CONTROL_CONNECTIONS_MAX: usize = 32;
/// Threads that do what requests ask for.
pub const CONTROL_WORKERS: usize = 6;
/// How many of them do what readers ask; a user has one.
pub const CONTROL_READERS: usize = 3;
/// How many of them wait for expressions to be compiled; a user has one.
pub const CONTROL_COMPILES: usize = 2;
/// How long a control connection may take to send a head, to send a body, and to take an answer.
pub const CONTROL_TIMEOUT_SECS: u64 = 5;
/// How long `weir reload` waits for its answer: interfaces whose guests are stuck take their time to go.
pub const RELOAD_TIMEOUT_SECS: u64 = 120;
/// Shortest and longest token of the API over TCP (bytes).
pub const CONTROL_TOKEN_LEN_MIN: usize = 16;
/// See [`CONTROL_TOKEN_LEN_MIN`].
pub const CONTROL_TOKEN_LEN_MAX: usize = 1024;
/// Most users that `admin` names.
pub const ADMINS_MAX: usize = 64;

/// Events that wait for a slow reader; of more it is told the number.
pub const EVENTS_WAITING_MAX: usize = 1024;
/// While somebody reads events, how often the switch is looked at (ns).
pub const EVENTS_LOOK_NS: u64 = 250_000_000;
/// Events that are kept until the next look.
pub const EVENTS_TOLD_MAX: usize = 64;
/// Drops begin if there were none for so long (ns).
pub const DROPS_QUIET_NS: u64 = 10_000_000_000;
/// Breaches of a budget are told of no more often than that (ns).
pub const BREACHES_TOLD_NS: u64 = 1_000_000_000;
/// While somebody reads events and there are none, how often a comment is sent (s): a reader who is gone is found.
pub const EVENTS_KEEP_ALIVE_SECS: u64 = 15;

/// Longest line that `weir-agent` and weir send each other, with its newline (bytes).
pub const AGENT_LINE_BYTES_MAX: usize = 4096;
/// Most bytes that wait for the other side of an agent's port which doesn't read them.
pub const AGENT_OUTBOUND_BYTES_MAX: usize = 4 * AGENT_LINE_BYTES_MAX;
/// Most bytes that weir reads from an agent before it looks at others.
pub const AGENT_READ_BYTES_MAX: usize = 4 * AGENT_LINE_BYTES_MAX;
/// Longest text in a message (a version, the name of an interface, the reason of a failure), in characters.
pub const AGENT_TEXT_LEN_MAX: usize = 96;
/// Most virtio-net interfaces of one guest that an agent speaks for.
pub const AGENT_INTERFACES_MAX: usize = 16;
/// Lines that an agent may send in a second, and at once after a rest: for each interface a report, ten
/// answers to settings (the manager runs ten times a second) and a hello.
pub const AGENT_LINES_PER_S_MAX: u32 = 12 * AGENT_INTERFACES_MAX as u32;
/// Bytes that an agent may send in a second, and at once after a rest: each of these lines at a quarter of
/// its length.
pub const AGENT_BYTES_PER_S_MAX: u32 = AGENT_LINES_PER_S_MAX * AGENT_LINE_BYTES_MAX as u32 / 4;
/// How often each side shows that it is there (ns): the agent by its reports, weir by a ping.
pub const AGENT_PERIOD_NS: u64 = 1_000_000_000;
/// Silence after which the other side is taken for gone (ns).
pub const AGENT_SILENCE_NS: u64 = 3 * AGENT_PERIOD_NS;
/// Shortest and longest interval at which a guest may be made to poll (ns). Below, the guest's timer
/// costs more than the calls; above, a ring of 256 is full before it is looked at at 25,000 frames/s.
pub const AGENT_POLL_NS_MIN: u64 = 10_000;
/// See [`AGENT_POLL_NS_MIN`].
pub const AGENT_POLL_NS_MAX: u64 = 10_000_000;
/// Fewest polls in a row that find nothing before a guest's interrupts come back on.
pub const AGENT_EMPTY_POLLS_MIN: u32 = 2;
/// The longest pause in traffic through which a guest goes on polling (ns). An empty poll costs a guest about one
/// interrupt. Through longer pauses (a napping worker's last up to nine times as long), polling would cost more
/// than interrupts.
pub const AGENT_POLL_PAUSE_NS: u64 = 100_000;
/// Longest time that one report of an agent may be about (ns).
pub const AGENT_INTERVAL_NS_MAX: u64 = 60_000_000_000;
/// Smallest and largest cost of one interrupt that an agent is believed (ns): a few hundred cycles, and
/// a hundred times what Dong 2011 measured.
pub const AGENT_COST_NS_MIN: u64 = 100;
/// See [`AGENT_COST_NS_MIN`].
pub const AGENT_COST_NS_MAX: u64 = 400_000;
/// Most interrupts, and most packets, in a second that an agent is believed.
pub const AGENT_EVENTS_PER_S_MAX: u64 = 100_000_000;
/// Most CPUs whose time an agent is believed.
pub const AGENT_CPUS_MAX: u64 = 4096;
/// Largest file in which an agent keeps the settings it found.
pub const AGENT_STATE_BYTES_MAX: u64 = 16 * 1024;
/// Largest file that an agent reads under `/proc`: `/proc/interrupts` of a guest with hundreds of CPUs.
pub const AGENT_PROC_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Largest file in which weir keeps what it found an uplink's interface to have (bytes).
pub const UPLINK_FOUND_BYTES_MAX: u64 = 4096;
/// Largest configuration file.
pub const CONFIG_BYTES_MAX: u64 = 1024 * 1024;
/// Most memory that reading a configuration may take: of any file of [`CONFIG_BYTES_MAX`] that has spaces and line breaks.
pub const CONFIG_COST_BYTES_MAX: u64 = 96 * 1024 * 1024;
/// The same where neither root nor weir's own user asks. With the answer it is less than [`CONFIG_MEMORY_BYTES_MAX`].
pub const CONFIG_COST_OF_ADMINS_BYTES_MAX: u64 = 12 * 1024 * 1024;
/// Most memory that weir takes for such a request, which it then gives back.
pub const CONFIG_MEMORY_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Longest text of which every mistake in its TOML is looked for (bytes), not only the first.
pub const CONFIG_MISTAKES_LEN_MAX: usize = 16 * 1024;
/// Most problems of a configuration that are shown; of the rest there is a count. A person mends a few and
/// looks again, and showing a problem takes a walk through the file.
pub const CONFIG_PROBLEMS_SHOWN_MAX: usize = 50;
/// Most problems that are looked for: what is wrong beyond them is found when these are mended.
pub const CONFIG_PROBLEMS_MAX: usize = 1000;
/// Most places that one problem points at.
pub const CONFIG_PLACES_SHOWN_MAX: usize = 8;
/// Longest piece of a configuration that is repeated in a message (characters).
pub const CONFIG_TEXT_SHOWN_MAX: usize = 200;
/// Longest line of a configuration that is shown (bytes); of a longer one the place is named.
pub const CONFIG_LINE_SHOWN_MAX: usize = 1000;
/// Panics of a worker that are about no port, after which weir ends: what starts it again then begins with memory that is
/// as it should be.
pub const WORKER_PANICS_MAX: u32 = 16;
/// Panics of another thread after which it ends, and what it does with it.
pub const THREAD_PANICS_MAX: u32 = 16;
/// Pause of a thread that has panicked before it begins anew (ns).
pub const THREAD_PAUSE_NS: u64 = 100_000_000;
/// How long an orderly end may take (ns): then weir ends as it is. With [`END_UNDOES_NS`] two seconds are kept.
pub const END_IN_ORDER_NS: u64 = 1_300_000_000;
/// How long the end of a weir that waits for nobody may take to restore and to say so (ns).
pub const END_UNDOES_NS: u64 = 400_000_000;
/// For how long a thread may do the same thing when this weir is to leave its guests to the next (ns).
pub const LEAVES_WITHIN_NS: u64 = 1_000_000_000;
/// A thread that has had no turn for so long, and does not sleep, stands still (ns).
pub const STANDS_STILL_NS: u64 = 5_000_000_000;
/// How often the watchdog looks (ns), or more often where the service manager wants to hear more often.
pub const WATCHDOG_LOOK_NS: u64 = 2_000_000_000;
/// Pause before xenstore is connected to anew after an error (ns).
pub const XENSTORE_PAUSE_NS: u64 = 1_000_000_000;
/// Most worker threads.
pub const WORKERS_MAX: usize = 64;
/// Most processors of a machine on which weir places its workers (`CPU_SETSIZE` of sched_setaffinity(2)).
pub const CPUS_MAX: usize = 1024;
/// Largest file that is read under `/sys` (bytes): a list of all these processors, each by itself, has 5 KB.
pub const SYSFS_BYTES_MAX: u64 = 16 * 1024;
/// Most caches of one processor that are looked at (`cache/index0`, ...).
pub const CACHE_INDEXES_MAX: u32 = 8;
/// Largest `/proc/PID/task/TID/stat` (bytes): 52 numbers and a name.
pub const PROC_STAT_BYTES_MAX: u64 = 4096;
/// Longest name of a port.
pub const PORT_NAME_LEN_MAX: usize = 32;
/// Longest name of a network interface (Linux: `IFNAMSIZ` - 1).
pub const IFNAME_LEN_MAX: usize = 15;
/// Longest path of a Unix socket (`sun_path` of `sockaddr_un` less its NUL).
pub const SOCKET_PATH_LEN_MAX: usize = 107;
/// Longest name of a user (bytes; useradd(8)).
pub const USER_NAME_LEN_MAX: usize = 32;
/// Largest VLAN id a port may use (IEEE 802.1Q: 4095 is reserved).
pub const VLAN_ID_MAX: u16 = 4094;

/// Most logical CPUs of a host in the lab.
pub const LAB_CPUS_MAX: usize = 1024;
/// Longest run, wait or period in the lab (ns): an hour.
pub const LAB_NS_MAX: u64 = 3_600_000_000_000;
/// Largest cost in a profile of the lab, in its own unit: a second, where that is ns.
pub const LAB_COST_MAX: u64 = 1_000_000_000;
/// Fastest link in the lab (bits a second).
pub const LAB_BITS_PER_S_MAX: u64 = 1_000_000_000_000;
/// Largest weight of a thread in the lab, where 1024 is usual.
pub const LAB_WEIGHT_MAX: u32 = 1 << 20;
/// Most runs of one experiment in the lab: points of its sweeps, times its seeds.
pub const LAB_RUNS_MAX: usize = 1_000;
/// Most events of one experiment in the lab, all its runs together.
pub const LAB_EVENTS_MAX: u64 = 1_000_000_000;
/// Most events of one experiment in the lab whose machine's fitted costs are varied, all variations together.
pub const LAB_SENSITIVITY_EVENTS_MAX: u64 = 10 * LAB_EVENTS_MAX;
/// Most events of a host that is planned in the lab, of all that is played for it.
pub const LAB_PLAN_EVENTS_MAX: u64 = 4 * LAB_EVENTS_MAX;
/// Most flows of one experiment in the lab, those of all guests together.
pub const LAB_FLOWS_MAX: usize = 4_096;
/// Most clients of one load in the lab.
pub const LAB_CLIENTS_MAX: u32 = 1 << 16;
/// Widest TCP window (segments) and longest queue before a link (frames) in the lab.
pub const LAB_QUEUE_MAX: u32 = 1 << 20;

/// Longest xenstore payload (bytes; Xen `XENSTORE_PAYLOAD_MAX`).
pub const XENSTORE_PAYLOAD_MAX: usize = 4096;
/// Longest message that may be written to `/dev/xen/xenbus`, with its header (bytes): what the kernel
/// collects it in.
pub const XENSTORE_REQUEST_MAX: usize = 4096;
/// How often a xenstore transaction is tried that others' writes got in the way of.
pub const XENSTORE_TRANSACTION_TRIES_MAX: u32 = 64;
/// Most segments that one system call copies between grants and weir's memory.
pub const GRANT_COPY_MAX: usize = 256;
/// Most frames of a Xen guest's transmit queue that wait for receivers: they are tried in one burst.
pub const XEN_PARKED_MAX: usize = BURST_MAX;
/// Most multicast addresses that a Xen guest may ask for (netback's `XEN_NETBK_MCAST_MAX`).
pub const XEN_MULTICAST_MAX: usize = 64;
/// Most requests of one control ring that are answered before those of others.
pub const XEN_CTRL_REQUESTS_MAX: usize = 32;

const _: () = {
    assert!(MEM_TABLE_REGIONS_MAX <= MEM_SLOTS_MAX);
    assert!(MEMORY_MAX_MIN < MEMORY_MAX_DEFAULT && MEMORY_MAX_DEFAULT < MEMORY_MAX_MAX);
    assert!(MEM_TABLES_MAX as u64 * MEMORY_MAX_MAX <= MEMORY_TOTAL_MAX);
    assert!(MEMORY_TOTAL_MAX < ADDRESS_SPACE_LEN / 4);
    assert!(
        MEM_REGIONS_TOTAL_MAX <= 65_530 / 2
            && MEM_TABLES_MAX * MEM_SLOTS_MAX < MEM_REGIONS_TOTAL_MAX
    );
    // Each port has room for a whole memory table, and for the one that replaces it.
    assert!(PORTS_MAX * MEM_REGIONS_FLOOR <= MEM_REGIONS_TOTAL_MAX);
    // A share is more than the floor, and one interface alone may have the largest `memory_max`.
    assert!(PORTS_MAX as u64 * MEMORY_FLOOR <= MEMORY_TOTAL_MAX / MEMORY_SHARED_PART);
    assert!(
        MEM_TABLES_MAX as u64 * MEMORY_MAX_MAX
            <= MEMORY_TOTAL_MAX - (PORTS_MAX as u64 - 1) * MEMORY_FLOOR
    );
    assert!(VHOST_USER_FDS_MAX >= MEM_TABLE_REGIONS_MAX);
    assert!(VHOST_USER_BODY_MAX >= 8 + MEM_TABLE_REGIONS_MAX * 32);
    assert!(VHOST_USER_OUTBOUND_BYTES_MAX >= 12 + VHOST_USER_BODY_MAX);
    assert!(QUEUE_SIZE_MAX.is_power_of_two());
    // Names of 15 letters with quotes and a comma, or processors of four digits with one.
    assert!(HELPER_MESSAGE_BYTES_MAX > PORTS_MAX * 18 + NETWORKS_MAX * 9 + 1024);
    // A number of eight digits, six of three, and words.
    assert!(HELPER_MESSAGE_BYTES_MAX > EVPN_BATCH * 96 + 1024);
    assert!(HELPER_MESSAGE_BYTES_MAX > CPUS_MAX * 5 + 1024);
    assert!(SESSION_CPU_PERCENT > 0 && SESSION_CPU_PERCENT < 100 && SESSIONS_PER_SEC_MAX <= 1000);
    assert!(SESSIONS_CPU_PERCENT.is_multiple_of(SESSION_CPU_PERCENT) && SESSIONS_CPU_PERCENT < 100);
    assert!(FOREIGN_CLOSE_NS_MAX < SESSION_GRACE_NS && FOREIGN_CLOSES_MAX > 0);
    assert!(SESSION_GRACE_NS < SESSION_END_NS && ACCEPT_PAUSE_NS < SESSION_GRACE_NS);
    // What all ports with all their queues may have, and as much again for the switch itself.
    assert!(DESCRIPTORS_MAX as usize > 2 * PORTS_MAX * (3 * VRINGS_MAX + 4));
    assert!(CALL_NS_USUAL_MAX < CALL_NS_MAX && 100 * CALL_NS_MAX < CALL_DEBT_NS_MAX);
    assert!(CALL_DEBT_NS_MAX < CALL_STUCK_NS && CALLS_WATCHED > 0);
    // Who makes its calls dear again and again takes a tenth of a worker at most.
    assert!(10 * CALL_DEBT_NS_MAX <= CALL_PAUSE_NS);
    assert!(SESSION_CPU_BURST_NS < SESSION_GRACE_NS && SESSION_TURN_NS < SESSION_CPU_BURST_NS);
    assert!(LOG_LINES_MAX > 0 && LIMIT_SHOWN_PERCENT <= 100 && SILENT_KICKS_MIN > 0);
    // A burst holds the longest frame, and names its pieces by 32 bits.
    assert!(BURST_BYTES_MAX > FRAME_LEN_MAX as u64);
    assert!(BURST_MAX <= u8::MAX as usize);
    assert!(BURST_MAX * CHAIN_LEN_MAX * BUFFER_PIECES_MAX < u32::MAX as usize);
    assert!(STORM_BURST_MIN >= BURST_MAX as u64 && PARKED_MAX <= QUEUE_SIZE_MAX as usize);
    assert!(XENSTORE_REQUEST_MAX > 16 && XENSTORE_PAYLOAD_MAX >= XENSTORE_REQUEST_MAX - 16);
    assert!(GRANT_COPY_MAX >= BURST_MAX && XEN_PAGE_LEN <= u16::MAX as usize);
    assert!(XEN_PARKED_MAX <= BURST_MAX);
    assert!(CHAIN_LEN_MAX <= QUEUE_SIZE_MAX as usize);
    assert!(FRAME_LEN_MIN < FRAME_LEN_MAX);
    assert!(NETIF_TX_FRAGS_MAX < NETIF_TX_FRAGS_FATAL && XEN_PAGE_LEN.is_power_of_two());
    assert!(NETIF_TX_FRAGS_MAX * XEN_PAGE_LEN > FRAME_LEN_MAX as usize);
    assert!(HEAD_LEN >= 14 + 4 + 40 + 60);
    assert!(RX_MERGE_MAX * 1024 > FRAME_LEN_MAX as usize + 12);
    assert!(GRO_LEN_MAX + 4 < FRAME_LEN_MAX && BURST_MAX <= GSO_SEGMENTS_MAX as usize);
    assert!(CONTAINER_BYTES_DEFAULT as usize <= CONTAINER_LEN_MAX / 2);
    assert!(PARKED_MAX >= BURST_MAX);
    assert!(CAPTURE_RING_LEN > BURST_MAX * FRAME_LEN_MAX as usize);
    assert!(END_IN_ORDER_NS + END_UNDOES_NS < 2_000_000_000);
    // libpcap's words quote the expression at most once.
    assert!(FILTER_ANSWER_LEN_MAX > 2 * FILTER_EXPRESSION_LEN_MAX);
    assert!(FILTER_COMPILE_SECS < CONTROL_TIMEOUT_SECS);
    assert!(FILTER_WINDOW_LEN > HEAD_LEN && FILTER_RULES_MAX < u8::MAX as usize);
    assert!(FILTER_RULES_MAX * (FILTER_EXPRESSION_LEN_MAX + 256) < CONTROL_REQUEST_BYTES_MAX);
    assert!(TAP_BURST_MAX <= BURST_MAX && TAP_PARKED_MAX <= BURST_MAX);
    assert!(TAP_SLOTS <= u16::MAX as usize);
    assert!(OVERLAY_HOSTS_MAX >= NETWORKS_MAX * 2 * OVERLAY_PEERS_MAX);
    // A number that has been a host's is another one's after 2,000 others at the earliest.
    assert!(OVERLAY_HOSTS_MAX.is_power_of_two() && OVERLAY_HOSTS_MAX <= 1 << 21);
    assert!(ANNOUNCED_VLANS_MAX <= BURST_MAX);
    assert!(OVERLAY_PEERS_MAX <= DATAGRAMS_MAX && OVERLAY_PARKED_MAX <= BURST_MAX);
    assert!(OVERLAY_SOURCE_PORTS <= u16::BITS as usize && OVERLAY_BUFFERS <= u8::MAX as usize);
    assert!(XDP_FRAMES.is_power_of_two() && XDP_FRAMES <= u16::MAX as u32);
    assert!(XDP_PARKED_MAX <= BURST_MAX && XDP_PARKED_MAX + BURST_MAX <= XDP_FRAMES as usize);
    assert!(XDP_CHUNK_LEN_MIN <= XDP_CHUNK_LEN_MAX && XDP_CHUNK_LEN_MIN.is_power_of_two());
    assert!(PORTS_MAX <= u16::MAX as usize);
    assert!(WORKERS_MAX <= CPUS_MAX && CPUS_MAX <= u16::MAX as usize);
    assert!(SYSFS_BYTES_MAX >= 5 * CPUS_MAX as u64);
    assert!(FDB_ENTRIES_MAX.is_power_of_two() && FDB_ENTRIES_DEFAULT.is_power_of_two());
    assert!(
        (FDB_PER_PORT_MAX as usize) < FDB_ENTRIES_DEFAULT && FDB_ENTRIES_DEFAULT < FDB_ENTRIES_MAX
    );
    assert!(FDB_PER_VIF_MAX <= FDB_PER_PORT_MAX);
    // Moves at the lowest rate are enough for a look.
    assert!(LOOP_MOVES_PER_S * LOOP_LOOK_NS <= LOOP_MOVES_MIN * 1_000_000_000);
    // A loop is found within 200 ms: a look, and the first probe out of both ports.
    assert!(LOOP_LOOK_NS + 2 * LOOP_PROBE_LOOKS as u64 * LOOP_PROBE_LOOK_NS < 200_000_000);
    // A pair is not asked again while it is asked.
    assert!((LOOP_PROBES * 2 * LOOP_PROBE_LOOKS) as u64 * LOOP_PROBE_LOOK_NS < LOOP_AGAIN_NS);
    assert!(LOOP_RETRY_NS < LOOP_RETRY_NS_MAX);
    // An address is noted as three numbers in brackets, of up to 4, 15 and 10 digits.
    // Beside what was learned there is room for all that can be set: of each port all rules, whose characters may be
    // written as two, and 8 KiB for its other keys.
    assert!(
        FDB_ENTRIES_MAX * 40
            + PORTS_MAX * (FILTER_RULES_MAX * (2 * FILTER_EXPRESSION_LEN_MAX + 64) + (8 << 10))
            < KEPT_NOTED_BYTES_MAX as usize
    );
    assert!(FDB_NETWORK_PART > FDB_OVERLAY_PART && NETWORKS_MAX <= 4096);
    assert!(INDIRECTION_LEN.is_power_of_two() && INDIRECTION_LEN >= QUEUE_PAIRS_MAX);
    assert!(STEERING_FLOWS_MAX.is_power_of_two());
    assert!(QUEUE_PAIRS_MAX <= u8::MAX as usize);
    assert!(LATENCY_BUDGET_NS_DEFAULT <= LATENCY_BUDGET_NS_MAX);
    assert!(SCHEDULE_QUANTUM_NS > 0 && DWCS_SLOT_NS > 0);
    assert!(WINDOW_PERIOD_NS_MIN < WINDOW_PERIOD_NS_MAX);
    assert!(RATE_BURST_NS_DEFAULT <= POLICE_BURST_NS_DEFAULT);
    assert!(RATE_WAIT_NS < RATE_BURST_NS_DEFAULT && RATE_BURST_PACKETS_MAX > BURST_MAX as u32);
    assert!(RATE_BURST_BYTES_MIN < RATE_BURST_BYTES_MAX && RATE_BURST_BYTES_MAX < u64::MAX / 8);
    assert!(CONTROL_REQUEST_BYTES_MAX < CONTROL_RESPONSE_BYTES_MAX);
    assert!(CONTROL_WORKERS > CONTROL_READERS + CONTROL_COMPILES);
    assert!(CONTROL_WORKERS < CONTROL_CONNECTIONS_MAX);
    // As many are served, as many turned away.
    assert!(DESCRIPTORS_RESERVED as usize >= 2 * CONTROL_CONNECTIONS_MAX + 4 * CONTROL_WORKERS);
    assert!(4 * DESCRIPTORS_RESERVED < DESCRIPTORS_MAX);
    assert!(CONTROL_TOKEN_LEN_MIN < CONTROL_TOKEN_LEN_MAX);
    assert!(CONTROL_TOKEN_LEN_MAX < CONTROL_HEAD_BYTES_MAX);
    assert!(EVENTS_LOOK_NS < BREACHES_TOLD_NS && BREACHES_TOLD_NS < DROPS_QUIET_NS);
    assert!(CONFIG_PROBLEMS_SHOWN_MAX < CONFIG_PROBLEMS_MAX);
    assert!(CONFIG_COST_OF_ADMINS_BYTES_MAX < CONFIG_MEMORY_BYTES_MAX);
    assert!(CONFIG_MEMORY_BYTES_MAX < CONFIG_COST_BYTES_MAX);
    assert!(
        CONFIG_PROBLEMS_SHOWN_MAX * CONFIG_PLACES_SHOWN_MAX * CONFIG_LINE_SHOWN_MAX
            <= CONFIG_BYTES_MAX as usize
    );
    assert!(AGENT_LINE_BYTES_MAX <= AGENT_OUTBOUND_BYTES_MAX);
    assert!(AGENT_LINE_BYTES_MAX <= AGENT_READ_BYTES_MAX);
    // A hello with the longest names, of which JSON makes at most twice as many characters.
    assert!(
        AGENT_INTERFACES_MAX * (80 + 2 * IFNAME_LEN_MAX) + 4 * AGENT_TEXT_LEN_MAX + 100
            < AGENT_LINE_BYTES_MAX
    );
    assert!(2 * AGENT_PERIOD_NS < AGENT_SILENCE_NS && AGENT_SILENCE_NS < AGENT_INTERVAL_NS_MAX);
    assert!(AGENT_POLL_NS_MIN < AGENT_POLL_NS_MAX && AGENT_POLL_NS_MAX <= LATENCY_BUDGET_NS_MAX);
    assert!(AGENT_POLL_PAUSE_NS / AGENT_POLL_NS_MIN <= 10 && AGENT_COST_NS_MIN < AGENT_COST_NS_MAX);
    assert!(QUEUE_PAIRS_MAX <= u8::MAX as usize);
};
