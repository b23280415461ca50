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
/// Most translations of a virtual IOMMU that a session keeps: as many as Linux's vhost does. A guest of Linux's own
/// drivers has one for each buffer that is in flight, a guest of DPDK one for each large page.
pub const IOTLB_ENTRIES_MAX: usize = 2048;
/// Most pieces of an area of a ring behind a virtual IOMMU, which are mapped a second time as one. Each is a mapping of
/// its own, and counts as a region of its front end. A ring of 1024 entries has up to five pages in an area.
pub const IOTLB_PIECES_MAX: usize = 8;
/// Most questions about translations that are open in a session. Each ring asks for one address at a time, and a ring
/// that begins for its three areas.
pub const IOTLB_ASKS_MAX: usize = 64;
/// Time (ns) after which an open question is asked again: a front end may have lost it.
pub const IOTLB_ASK_AGAIN_NS: u64 = 1_000_000_000;
/// Receive buffers of a ring behind a virtual IOMMU whose translations are asked for before a frame needs them: a copy
/// of a broadcast does not wait for a buffer.
pub const IOTLB_AHEAD_MAX: u16 = 16;
/// Longest wait (ns) until no worker uses an invalidated translation any more. A worker is done
/// within its burst.
pub const IOTLB_WAIT_NS_MAX: u64 = 5_000_000_000;
/// Most bytes that the regions of one front end have together if `memory_max` is not configured: more than a guest
/// needs, and far less than would leave no memory for other guests.
pub const MEMORY_MAX_DEFAULT: u64 = 256 << 30;
/// Smallest and largest `memory_max` (bytes).
pub const MEMORY_MAX_MIN: u64 = 1 << 20;
/// See [`MEMORY_MAX_MIN`].
pub const MEMORY_MAX_MAX: u64 = 8 << 40;
/// Memory tables that one front end may have mapped at a time: a new table is mapped before the old one is unmapped.
pub const MEM_TABLES_MAX: usize = 2;
/// Bytes of memory that all front ends together may have mapped. The rest of the address space is weir's: with
/// less of it, a thread or a large allocation fails, and that would end the switch.
pub const MEMORY_TOTAL_MAX: u64 = 24 << 40;
/// Addresses that a process has on x86-64 and on arm64 (`TASK_SIZE`).
pub const ADDRESS_SPACE_LEN: u64 = 1 << 47;
/// Most regions that all front ends together may have mapped: half of the mappings that a process may have
/// (`vm.max_map_count`, 65530). The other half is for weir itself, and for the repair of regions that were truncated.
pub const MEM_REGIONS_TOTAL_MAX: usize = 32_000;
/// Memory (bytes) and regions that each interface can always map, even if there are [`PORTS_MAX`] interfaces and the
/// others have mapped all they can. The regions suffice for a memory table and for the table that replaces it.
pub const MEMORY_FLOOR: u64 = 8 << 30;
/// See [`MEMORY_FLOOR`].
pub const MEM_REGIONS_FLOOR: usize = MEM_TABLES_MAX * MEM_TABLE_REGIONS_MAX;
/// Divisor for the part of the memory and of the regions that is split evenly among the existing interfaces, as a
/// reserved share of each. The rest goes to the first interface that asks.
pub const MEMORY_SHARED_PART: u64 = 2;
/// Most file systems in `memory_filesystems`.
pub const MEMORY_FILE_SYSTEMS_MAX: usize = 16;
/// Largest `/proc/self/mountinfo` that is read (bytes): thousands of mounts.
pub const MOUNTINFO_BYTES_MAX: u64 = 4 << 20;
/// Kicks without work, beyond one for each frame, after which a ring's kicks are ignored for [`VAIN_KICKS_PAUSE_NS`]:
/// each such kick wakes a worker at the expense of other ports. An honest driver makes fewer before it learns that
/// kicks are not needed.
pub const VAIN_KICKS_MAX: u8 = 64;
/// Time for which kicks are ignored (ns). If a guest sends a frame in this time, after a long silence, the frame waits
/// this long at most.
pub const VAIN_KICKS_PAUSE_NS: u64 = 1_000_000;
/// Longest turn of a front end's thread (ns) before it yields to threads that wait for its processor. Without the
/// yield, the kernel would let them wait for some milliseconds. One message can take longer, for example to map memory.
pub const SESSION_TURN_NS: u64 = 200_000;
/// Share of a processor that the sessions of one interface may use, in percent: the setup of a guest takes some
/// milliseconds once. More would take time from others, since workers and sessions share processors.
pub const SESSION_CPU_PERCENT: u64 = 5;
/// Share of a processor that all throttled sessions may use together, in percent: many front ends that flood at the
/// same time take no more of the machine than a few.
pub const SESSIONS_CPU_PERCENT: u64 = 20;
/// Processor time that the sessions of one interface may use in one piece (ns): the setup of a front end with eight
/// queues takes one millisecond. Many interfaces can use it at the same time, and again after a tenth of a second.
pub const SESSION_CPU_BURST_NS: u64 = 5_000_000;
/// Most processor time (ns) for which one interface's sessions pause afterwards. Only a message that unmaps much memory
/// takes more. Without this bound a front end could wait for minutes on a host that was paused: some hosts count such a
/// pause as processor time.
pub const SESSION_CPU_DEBT_NS: u64 = 100_000_000;
/// Front ends of one socket that may connect in a row without a pause. After them, [`SESSIONS_PER_SEC_MAX`] per second
/// may connect. Each connection costs a thread, and time of the manager that other interfaces wait for.
pub const SESSIONS_AT_ONCE_MAX: u32 = 32;
/// See [`SESSIONS_AT_ONCE_MAX`].
pub const SESSIONS_PER_SEC_MAX: u64 = 10;
/// Time (ns) that a new front end waits while another one is connected, before it is turned away: the other one can be
/// the old front end, which is about to disconnect.
pub const SESSION_GRACE_NS: u64 = 500_000_000;
/// Longest wait for a session to end (ns). A session that takes longer is treated as if it never ended: its thread
/// hangs in a call on a descriptor.
pub const SESSION_END_NS: u64 = 5_000_000_000;
/// Longest time (ns) that closing a descriptor from outside may take before a signal interrupts it.
pub const FOREIGN_CLOSE_NS_MAX: u64 = 100_000_000;
/// Most descriptors of one party that were handed over and are not closed yet. At this number, weir accepts nothing
/// more from the party. A message has 253 descriptors at most.
pub const FOREIGN_CLOSES_MAX: usize = 64;
/// Longest time (ns) for which a front end may leave a message half sent, or keep its socket so full that a reply finds
/// no room. A descriptor in flight can be the front end's end of this very connection, which would then never close.
pub const SESSION_STALL_NS: u64 = 5_000_000_000;
/// Silence of a front end (ns) after which its session has no thread. Guests begin and end rings in quick succession,
/// and are silent for hours then. A front end that speaks each time after this silence costs a thread each time, at
/// most a tenth of those that [`SESSIONS_PER_SEC_MAX`] allows.
pub const SESSION_QUIET_NS: u64 = 1_000_000_000;
/// Pause of a socket (ns) after `accept` has failed, for example because descriptors ran out.
pub const ACCEPT_PAUSE_NS: u64 = 100_000_000;
/// Messages of one kind about one port that are logged within [`LOG_PERIOD_NS`]. Further messages say nothing new, and
/// all ports share the disk.
pub const LOG_LINES_MAX: u32 = 5;
/// See [`LOG_LINES_MAX`] (ns).
pub const LOG_PERIOD_NS: u64 = 60_000_000_000;
/// Lines about all ports together that are logged in a second, after [`LOG_LINES_AT_ONCE_MAX`] at once: with many front
/// ends, five lines a minute from each are still a flood.
pub const LOG_LINES_PER_SEC_MAX: u64 = 4;
/// See [`LOG_LINES_PER_SEC_MAX`].
pub const LOG_LINES_AT_ONCE_MAX: u64 = 8;
/// Descriptors that the switch needs. It raises its limit to this number, or to the highest number that it is allowed.
pub const DESCRIPTORS_MAX: u64 = 1 << 20;
/// Descriptors that no guest can use, out of a limit at least four times as high: for connections of the control
/// socket, for clients that are replaced, and for files that a request opens.
pub const DESCRIPTORS_RESERVED: u64 = 96;
/// Approximate number of descriptors that a switch without interfaces uses: sockets, timers and events of its threads.
pub const DESCRIPTORS_OF_SWITCH: u64 = 32;
/// Descriptors of one message of an agent: the most that the kernel takes (`SCM_MAX_FD`).
pub const DESCRIPTORS_OF_AGENT: u64 = 253;
/// Descriptors of each worker: those on which it sleeps.
pub const DESCRIPTORS_OF_WORKER: u64 = 4;
/// Descriptors of a front end beside those of its rings: its connection, the event that ends its session, its channel
/// for weir's requests, the event of its dirty log, the bell of the thread that calls by pipes, and two that are not
/// closed yet.
pub const DESCRIPTORS_OF_GUEST: u64 = 7;
/// Descriptors of one ring: kick, call and error.
pub const DESCRIPTORS_OF_RING: u64 = 3;
/// Descriptors of the message that a front end has begun to send. The kernel has room for one more than is asked for.
pub const DESCRIPTORS_OF_MESSAGE: u64 = VHOST_USER_FDS_MAX as u64 + 1;
/// Copies of a session's descriptors that lie with a keeper, beside those of rings: its connection, channel, log, log's
/// event, area for records, and as many regions of memory as one message can have.
pub const KEPT_OF_SESSION: u64 = 5 + MEM_TABLE_REGIONS_MAX as u64;
/// Descriptors that must be free before a front end is accepted, or an interface is added: as many as one message can
/// carry.
pub const DESCRIPTORS_BEFORE_GUEST: u64 = VHOST_USER_FDS_MAX as u64;
/// Use from which on the table of `weir stats` names a bound (percent).
pub const LIMIT_SHOWN_PERCENT: u64 = 80;
/// Time (ns) for which a ring must have been in service before it is reported as served by no driver: the driver's
/// first kick may be under way.
pub const SILENT_NS_MIN: u64 = 1_000_000_000;
/// Kicks of a ring that was always empty, before the ring is reported: virtual machine monitors kick at each start, and
/// so does weir.
pub const SILENT_KICKS_MIN: u64 = 8;
/// The user that weir becomes if none is configured and no user is named `weir`; the 15 ids after
/// it are also weir's. The ids are in systemd's range for services without their own user (61,184
/// to 65,519), so probably nothing else uses them.
pub const SANDBOX_UID: u32 = 64_773;
/// Longest message between weir and its helper (bytes). Most name a socket or processors; the first names all
/// interfaces of uplinks and all networks that FRR learns of.
pub const HELPER_MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Sockets that the helper makes by one request. Two descriptors of each are on their way at once, and a packet has 253
/// at most.
pub const HELPER_SOCKETS_TOGETHER_MAX: usize = 32;
/// Longest name of the owner of an interface (bytes): a word and a UUID, with room.
pub const OWNER_LEN_MAX: usize = 128;
/// Longest XML of a libvirt domain that is read: libvirt itself takes 4 MiB.
pub const DOMAIN_XML_BYTES_MAX: usize = 8 << 20;
/// Most elements and texts in such an XML. The bound limits the memory that reading takes.
pub const DOMAIN_XML_NODES_MAX: u32 = 200_000;
/// Most interfaces of one libvirt domain.
pub const DOMAIN_VIFS_MAX: usize = 64;
/// The time after which libvirt stops waiting for `weir libvirt hook`.
pub const LIBVIRT_HOOK_TIMEOUT_SECS: u64 = 30;
/// The part of that time in which a weir that was killed or restarted can come back.
pub const LIBVIRT_HOOK_PATIENCE_SECS: u64 = 5;
/// Longest name of a descriptor that is kept (systemd: `FDNAME_MAX`).
pub const KEPT_NAME_LEN_MAX: usize = 255;
/// Most descriptors that are kept for one interface: two memory tables while one replaces the other, three for each
/// ring, and a few of the session.
pub const KEPT_PER_OWNER_MAX: usize = 2 * MEM_SLOTS_MAX + 2 * 3 * VRINGS_MAX + 16;
/// Bytes of the state of one session: its rings, and a whole table of memory, as text.
pub const KEPT_STATE_BYTES_MAX: usize = 128 << 10;
/// Most bytes that weir notes for its successor: all learned addresses, and all settings.
pub const KEPT_NOTED_BYTES_MAX: u64 = 128 << 20;
/// Number of times in a row that weir may end while it handles the same message of a front end. After that, the front
/// end's session is not resumed.
pub const KEPT_TRIES_MAX: u32 = 3;
/// Longest time (ns) in which a keeper may accept no packet, or send none. After it, a weir that serves guests treats
/// the keeper as disconnected.
pub const KEEPER_PATIENCE_NS: u64 = 200_000_000;
/// Time (ns) for which weir waits at its start for each answer of a keeper that exists. The keeper may be handling the
/// end of a weir that was killed, on a busy machine, and weir serves nobody yet.
pub const KEEPER_START_NS: u64 = 5_000_000_000;
/// Time (ns) for which a weir that starts waits for the end of the weir that the keeper serves.
pub const KEEPER_BUSY_NS: u64 = 500_000_000;
/// Pause between two attempts to reach the keeper (ns): the first pause, and the longest.
pub const KEEPER_PAUSE_NS_MIN: u64 = 100_000_000;
/// See [`KEEPER_PAUSE_NS_MIN`].
pub const KEEPER_PAUSE_NS_MAX: u64 = 5_000_000_000;
/// Longest time (ns) for which frames wait at weir's start until all resumed sessions continue.
pub const KEPT_TAKE_UP_NS: u64 = 100_000_000;
/// Time (ns) that a front end has to continue after a reply that may not have been sent.
pub const KEPT_DOUBT_NS: u64 = 200_000_000;
/// Time (ns) that sessions have to reach a point between two requests when weir leaves them to its successor.
pub const SESSION_LEAVE_NS: u64 = 200_000_000;
/// Time (ns) that a new weir has for all preparations that are possible before the old one stops.
pub const UPGRADE_PREPARE_NS: u64 = 20_000_000_000;
/// Time (ns) that the new weir has to begin its service after the old one has stopped. Guests wait meanwhile.
pub const UPGRADE_TAKE_NS: u64 = 5_000_000_000;
/// Time for which a client waits for an upgrade: two failed attempts, one after the other.
pub const UPGRADE_TIMEOUT_SECS: u64 = 60;
/// Largest virtqueue (virtio 1.2 §2.7: 32768).
pub const QUEUE_SIZE_MAX: u16 = 32768;
/// Entries of a virtqueue that `weir qemu-args` suggests and built-in guests use: the most that QEMU gives a vhost-user
/// device (`VIRTQUEUE_MAX_SIZE`; other back ends get 256 for TX).
pub const QUEUE_SIZE_SUGGESTED: u16 = 1024;
/// Smallest virtqueue that QEMU gives a network device (`VIRTIO_NET_RX_QUEUE_MIN_SIZE`, and the same for TX).
pub const QUEUE_SIZE_ASKED_MIN: u16 = 256;
/// Most queue pairs of one interface.
pub const QUEUE_PAIRS_MAX: usize = 8;
/// Most uplinks of a bond, which has at least one queue of each.
pub const BOND_UPLINKS_MAX: usize = QUEUE_PAIRS_MAX;
/// Most stations that a bond announces when another of its uplinks begins to carry frames.
pub const BOND_ANNOUNCED_MAX: usize = 4096;
/// Interval (ns) at which a bond asks which of its uplinks have a carrier, while it can choose.
pub const BOND_ASK_NS: u64 = 40_000_000;
/// Shortest time (ns) between two looks of a bond at the LACPDUs that came in. Of the LACPDUs that
/// an uplink gets in that time, the last one counts.
pub const BOND_LACP_PAUSE_NS: u64 = 10_000_000;
/// Most changes of interfaces that a bond reads at a time.
pub const BOND_CHANGES_MAX: usize = 256;
/// Most virtqueues of one interface (RX and TX of each pair).
pub const VRINGS_MAX: usize = QUEUE_PAIRS_MAX * 2;

/// Most descriptors in one chain. Linux sends at most `MAX_SKB_FRAGS + 2` (19, or 47 with big `CONFIG_MAX_SKB_FRAGS`);
/// a longer chain is refused before it costs time.
pub const CHAIN_LEN_MAX: usize = 256;
/// Most memory regions that one buffer of a guest may lie in. An honest buffer lies in one, or in two where regions
/// touch. A front end that shares its memory page by page could otherwise make each burst take millions of pieces.
pub const BUFFER_PIECES_MAX: usize = 4;
/// Largest frame weir moves, without the virtio header: a 64 KiB GSO packet plus Ethernet and VLAN headers.
pub const FRAME_LEN_MAX: u32 = 65_535 + 14 + 4;
/// Smallest frame: an Ethernet header. Guests may send runts below 60 bytes; no wire pads them here.
pub const FRAME_LEN_MIN: u32 = 14;
/// Bytes of a frame's front that are copied out once, checked, and delivered from that copy:
/// Ethernet (14) + VLAN (4) + IPv6 (40) + TCP with all options (60) = 118, rounded up.
pub const HEAD_LEN: usize = 128;
/// Most frames taken from one queue before the worker turns to the next.
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
/// A packet with this many slots after the first one, or more, is an attack (Linux netback: `FATAL_SKB_SLOTS_DEFAULT`).
pub const NETIF_TX_FRAGS_FATAL: usize = 20;
/// Most extra infos of one packet: one of each type (`XEN_NETIF_EXTRA_TYPE_*`).
pub const NETIF_EXTRAS_MAX: usize = 5;

/// Most IPv6 extension headers that are walked to find the transport header.
pub const IPV6_EXT_HEADERS_MAX: usize = 8;
/// Most segments that one GSO frame is cut into in software: 64 KiB at a payload of 32 bytes, less than Linux's
/// smallest payload (`tcp_min_snd_mss`, 48, less 12 of timestamps). A frame with more segments is an attack.
pub const GSO_SEGMENTS_MAX: u32 = 2048;
/// Longest packet that TCP segments are merged into (bytes), without a VLAN tag. It fits IP's length fields and, with a
/// tag, the buffers of a driver with TSO (virtio 1.2 §5.1.6.3.1).
pub const GRO_LEN_MAX: u32 = 65_535 - 4;
/// Most consecutive frames of other flows that are skipped in the search for a flow's next segment. Linux keeps as many
/// flows open in each bucket (`MAX_GRO_SKBS`).
pub const GRO_FLOWS_BETWEEN_MAX: usize = 8;
/// After this many consecutive segments that could not be merged, the rest of a receiver's list is not searched: each
/// flow in the list has one frame only, or the receiver has no room.
pub const GRO_LONE_MAX: u8 = 8;
/// Most pieces of memory that one merged packet is copied from: as many as one frame may have.
pub const GRO_PIECES_MAX: usize = CHAIN_LEN_MAX;

/// Most ports of one switch (guests and uplinks).
pub const PORTS_MAX: usize = 1024;
/// Entries of the forwarding table if none are configured; 256 KiB.
pub const FDB_ENTRIES_DEFAULT: usize = 16_384;
/// Most entries of the forwarding table; 16 MiB.
pub const FDB_ENTRIES_MAX: usize = 1 << 20;
/// Seconds without traffic after which a learned address is forgotten (IEEE 802.1Q default).
pub const FDB_AGE_SECS: u32 = 300;
/// Most addresses learned behind one port without a source-MAC check (an uplink): one port cannot fill the table.
pub const FDB_PER_PORT_MAX: u32 = 4096;
/// Most addresses learned behind one guest's interface. With the source-MAC check, the interface has one address per
/// VLAN; without it, this number leaves room for a few nested guests.
pub const FDB_PER_VIF_MAX: u32 = 64;
/// Multicast groups of one interface in one VLAN and IP version; with more, the interface gets every group.
pub const MULTICAST_GROUPS_PER_VIF_MAX: u32 = 64;
/// Records of group reports that count in a second, of one interface in one VLAN and IP version; with more, the
/// interface gets every group.
pub const MULTICAST_RECORDS_PER_S: u32 = 256;
/// Time between two queries of weir's own (s): RFC 3376 §8.2.
pub const MULTICAST_QUERY_SECS: u32 = 125;
/// Time in which the members of groups answer weir's query (s): RFC 3376 §8.3.
pub const MULTICAST_RESPONSE_SECS: u32 = 10;
/// Longest time of an answer that a foreign query is believed to give (s).
pub const MULTICAST_RESPONSE_SECS_MAX: u32 = 60;
/// Time after which a membership ends without another report (s): RFC 3376 §8.4.
pub const MULTICAST_MEMBER_SECS: u32 = 2 * MULTICAST_QUERY_SECS + MULTICAST_RESPONSE_SECS;
/// Time after which a querier that asks no more counts as gone (s): RFC 3376 §8.5.
pub const MULTICAST_QUERIER_SECS: u32 = 2 * MULTICAST_QUERY_SECS + MULTICAST_RESPONSE_SECS / 2;
/// Shortest time between two searches for memberships that have ended (s).
pub const MULTICAST_SWEEP_SECS: u32 = 10;
/// Memberships that one answer shows, and ports that get all groups: each VLAN and IP version has its share.
pub const MULTICAST_SHOWN: usize = 4096;
/// Entries that an answer reads under a lock that frames wait for, before it lets frames pass.
pub const READ_AT_ONCE: usize = 128;
/// Interval at which moves of addresses are checked (ns), while a loop is possible and there is traffic.
pub const LOOP_LOOK_NS: u64 = 100_000_000;
/// Number of moves of addresses between two ports, in each direction, from one check to the next, that makes a loop
/// suspected if [`LOOP_MOVES_PER_S`] is reached too.
pub const LOOP_MOVES_MIN: u64 = 2;
/// Number of such moves in a second, in each direction, that makes a loop suspected: honest stations move more rarely.
pub const LOOP_MOVES_PER_S: u64 = 20;
/// Shortest interval at which the same two ports are probed for a loop (ns).
pub const LOOP_AGAIN_NS: u64 = 1_000_000_000;
/// Suspected pairs of uplinks that are examined at a time; as many other pairs are examined beside them.
pub const LOOP_SUSPICIONS_MAX: usize = 4;
/// Rounds of probes out of each port of a suspected loop, and copies of a probe in each round: the queues of a loop are
/// full, and most frames are lost in them.
pub const LOOP_PROBES: usize = 3;
/// See [`LOOP_PROBES`].
pub const LOOP_PROBE_COPIES: usize = 4;
/// Checks for a returned probe after it was sent, and the pause before each (ns).
pub const LOOP_PROBE_LOOKS: usize = 10;
/// See [`LOOP_PROBE_LOOKS`].
pub const LOOP_PROBE_LOOK_NS: u64 = 2_000_000;
/// Pause before a port that is blocked for a loop is tried again (ns): the first pause, and the longest.
pub const LOOP_RETRY_NS: u64 = 10_000_000_000;
/// See [`LOOP_RETRY_NS`].
pub const LOOP_RETRY_NS_MAX: u64 = 600_000_000_000;
/// Time (ns) after which a thread that looks for a loop and does not end is abandoned.
pub const LOOP_THREADS_END_NS: u64 = 1_000_000_000;
/// Most networks of one switch that are not VLANs.
pub const NETWORKS_MAX: usize = 4096;
/// Addresses learned behind uplinks in one network get at most this part of the table (one in so many), so that one
/// tenant's traffic leaves room for others'.
pub const FDB_NETWORK_PART: usize = 16;
/// Addresses behind the port of an overlay get at most this part of the table (one in so many).
pub const FDB_OVERLAY_PART: usize = 2;
/// Bytes by which the underlay's MTU exceeds that of guests: IPv4, UDP, VXLAN, and the guest's Ethernet header.
pub const OVERLAY_OVERHEAD_V4: u16 = 20 + 8 + 8 + 14;
/// Bytes by which an IPv6 underlay's MTU exceeds that of guests.
pub const OVERLAY_OVERHEAD_V6: u16 = 40 + 8 + 8 + 14;
/// VLANs of a trunk in which a guest that has moved is announced with a tag: at most the frames of one burst.
pub const ANNOUNCED_VLANS_MAX: usize = 64;
/// The largest DSCP (RFC 2474: six bits).
pub const DSCP_MAX: u8 = 63;
/// Most hosts to which one network's frames are flooded.
pub const OVERLAY_PEERS_MAX: usize = 256;
/// Most hosts of all networks together, a power of two: members, and other hosts that send.
pub const OVERLAY_HOSTS_MAX: usize = 1 << 21;
/// Sockets from which an overlay sends, each with its own source port: the underlay distinguishes
/// flows by the port (ECMP, RSS).
pub const OVERLAY_SOURCE_PORTS: usize = 16;
/// Frames of an overlay's queue that may wait, in weir's memory, for receivers that are full: all are tried again in
/// one burst.
pub const OVERLAY_PARKED_MAX: usize = BURST_MAX;
/// Buffers of an overlay's queue, each for a message of up to 64 KiB: a waiting frame holds at most one.
pub const OVERLAY_BUFFERS: usize = OVERLAY_PARKED_MAX + DATAGRAMS_RECEIVED_MAX;
/// Frames that one network may flood to all of its peers, per second and at once, if no rate is configured: each frame
/// costs a datagram for each peer.
pub const OVERLAY_FLOODS_PER_SEC_DEFAULT: u32 = 10_000;
/// Consecutive errors of an overlay's socket, without a datagram between them, after which its port stops.
pub const OVERLAY_ERRORS_MAX: u32 = 64;
/// Interval at which a host that receives frames is asked for its share of latency budgets (ns).
pub const OVERLAY_ASK_NS: u64 = 1_000_000_000;
/// Number of times that the interval doubles for a host that does not answer: to 16 s in the end.
pub const OVERLAY_ASKS_DOUBLED: u32 = 4;
/// Time for which a received share is valid (ns).
pub const OVERLAY_SHARE_NS: u64 = 60_000_000_000;
/// Most messages that one system call receives.
pub const DATAGRAMS_RECEIVED_MAX: usize = 32;
/// Most datagrams, and messages, that are gathered before they are sent.
pub const DATAGRAMS_MAX: usize = 256;
/// Bytes of a datagram that are copied: an overlay's header and a frame's front with a tag.
pub const DATAGRAM_FRONT_LEN_MAX: usize = 16 + HEAD_LEN + 4;
/// Socket buffer of an overlay in the kernel, in each direction (bytes).
pub const OVERLAY_SOCKET_BUFFER_LEN: usize = 4 << 20;
/// First of the UDP ports for the kernel's VXLAN devices that FRR watches. The devices get the first free port. No
/// frame passes these devices. The ports are above Linux's ephemeral range.
pub const EVPN_DEVICE_PORT: u16 = 61_789;
/// Number of these ports.
pub const EVPN_DEVICE_PORTS: u16 = 8;
/// Changes that are read, or passed to FRR, before other work has its turn.
pub const EVPN_BATCH: usize = 256;
/// Shortest time between two batches (ns): a flood of routes gets only a part of a processor.
pub const EVPN_PAUSE_NS: u64 = 5_000_000;
/// Socket buffer in the kernel for changes that were not read yet (bytes).
pub const EVPN_SOCKET_BUFFER_LEN: usize = 4 << 20;
/// Time (ns) for which a route that FRR has withdrawn stays in use: FRR may be about to end, and weir then finds that
/// it is disconnected.
pub const EVPN_WITHDRAWN_NS: u64 = 100_000_000;
/// Time (ns) for which known routes stay in use while FRR is disconnected: the restart time of BGP's graceful restart
/// (RFC 4724, FRR's default).
pub const EVPN_HOLD_NS: u64 = 120_000_000_000;
/// Time (ns) that FRR has, once it is connected again, to repeat its routes.
pub const EVPN_BACK_NS: u64 = 30_000_000_000;
/// Time (ns) that bgpd has, after VNIs were removed and added again, to send zebra the other hosts' routes.
pub const EVPN_RESYNC_NS: u64 = 5_000_000_000;
/// Number of consecutive [checks](EVPN_LOOK_NS) that find bgpd connected to a new zebra, before VNIs are removed and
/// added again.
pub const EVPN_RESYNC_LOOKS: u32 = 4;
/// Interval at which weir looks for FRR while it is disconnected (ns).
pub const EVPN_LOOK_NS: u64 = 500_000_000;
/// Shortest time (ns) after which an address that another host has taken over is announced again.
pub const EVPN_AGAIN_NS: u64 = 1_000_000_000;
/// Time (ns) that a weir has to repeat the announcements of the weir whose networks it continues; it then withdraws
/// those that it has not repeated. Guests with a keeper are back at once.
pub const EVPN_ADOPT_NS: u64 = 2_000_000_000;
/// IP addresses of other hosts' stations that are known, per entry of the forwarding table. A station has IPv4, IPv6
/// and link-local addresses.
pub const EVPN_OWNED_PER_ADDRESS: usize = 2;
/// Divisor for the largest part of these addresses that one network may have.
pub const EVPN_OWNED_PART: usize = 8;
/// IP addresses that are learned for one local station: IPv6 has several, temporary ones too (RFC 8981).
pub const EVPN_CLAIMS_PER_MAC: usize = 16;
/// IP addresses that are learned for local stations in one network.
pub const EVPN_CLAIMS_PER_NETWORK: usize = 1024;
/// IP addresses that are learned for local stations in all networks.
pub const EVPN_CLAIMS_MAX: usize = 16 * EVPN_CLAIMS_PER_NETWORK;
/// Time (ns) after which an IP address of a local station that does not claim it again is forgotten.
pub const EVPN_CLAIM_AGE_NS: u64 = 1_200_000_000_000;
/// Time (ns) for which an IP address that two stations claim is announced for neither.
pub const EVPN_CONTEST_NS: u64 = 60_000_000_000;
/// Claims of one network that wait to be processed, and the number that is processed in a second.
pub const EVPN_SIGHTINGS_MAX: usize = 64;
/// See [`EVPN_SIGHTINGS_MAX`].
pub const EVPN_SIGHTINGS_PER_SEC: u64 = 200;
/// Sockets of an overlay that share incoming traffic. One more queue is for weir's own answers.
pub const OVERLAY_QUEUES_MAX: usize = QUEUE_PAIRS_MAX - 1;
/// Number of an overlay's own answers to guests that may wait to be sent, and number in one network per second.
pub const OVERLAY_ANSWERS_MAX: usize = BURST_MAX;
/// See [`OVERLAY_ANSWERS_MAX`].
pub const OVERLAY_ANSWERS_PER_SEC: u64 = 10_000;
/// Entries of a receive indirection table (`ethtool -x`; the usual size in NICs, Dong 2011's vRSS).
pub const INDIRECTION_LEN: usize = 128;
/// Flows of one interface whose receive queue follows their transmit queue.
pub const STEERING_FLOWS_MAX: usize = 1024;
/// Most changes of a receive queue that wait for a safe moment at a time, those of flows and of table entries together.
pub const STEERING_CHANGES_MAX: usize = 32;
/// Seconds without a transmitted frame after which another flow may take the place of such a flow (Linux `tun`:
/// `TUN_FLOW_EXPIRE`).
pub const STEERING_FLOW_IDLE_SECS: u32 = 3;

/// Most filter rules of one port, both directions.
pub const FILTER_RULES_MAX: usize = 32;
/// Longest filter expression (bytes).
pub const FILTER_EXPRESSION_LEN_MAX: usize = 1024;
/// Time limit of libpcap for one expression (s). A usual one takes a millisecond.
pub const FILTER_COMPILE_SECS: u64 = 2;
/// Address space of the process in which libpcap runs (MiB): the program and its libraries take 50 of it.
pub const FILTER_COMPILER_MIB: u64 = 256;
/// Longest answer of the process in which libpcap runs (bytes): a program, or libpcap's error message.
pub const FILTER_ANSWER_LEN_MAX: usize = 1 + 8 * FILTER_INSTRUCTIONS_MAX;
/// Most instructions of one filter program (Linux and libpcap: `BPF_MAXINSNS`), and of all programs of one port and
/// direction together. The bound limits what one packet costs.
pub const FILTER_INSTRUCTIONS_MAX: usize = 4096;
/// Words of scratch memory that a filter program has (Linux and libpcap: `BPF_MEMWORDS`).
pub const FILTER_MEMORY_WORDS: usize = 16;
/// Bytes of a frame's front that a filter can see: all of a frame with an MTU of 1500.
pub const FILTER_WINDOW_LEN: usize = 2048;

/// Templates of one switch.
pub const TEMPLATES_MAX: usize = 256;
/// Most characters of values that interfaces of one configuration take from their templates.
/// Without the limit, a short text with one large template could make many interfaces large.
pub const TEMPLATES_COPIED_MAX: usize = 256 * 1024;

/// Patterns of interfaces on demand.
pub const ON_DEMAND_PATTERNS_MAX: usize = 16;
/// Interfaces on demand of one pattern.
pub const ON_DEMAND_VIFS_MAX: usize = 256;
/// Default number of interfaces on demand of one pattern, if the pattern sets none.
pub const ON_DEMAND_VIFS_DEFAULT: usize = 16;
/// Seconds for which a monitor may be away before its interface on demand is removed.
pub const ON_DEMAND_FORGET_SECS_DEFAULT: u32 = 60;
/// The greatest such number.
pub const ON_DEMAND_FORGET_SECS_MAX: u32 = 86_400;
/// Entries of a directory that are looked at for one pattern. The bound limits the time that a full directory costs.
pub const ON_DEMAND_ENTRIES_MAX: usize = 4096;
/// Sockets of one pattern that are known at a time. An answer of the helper has room for them.
pub const ON_DEMAND_SOCKETS_MAX: usize = 512;
/// Files that get no interface and are shown, of each pattern.
pub const ON_DEMAND_REFUSED_SHOWN: usize = 8;
/// The time between two looks at the directories, if no change is reported.
pub const ON_DEMAND_LOOK_NS: u64 = 1_000_000_000;
/// The time for a monitor to listen on the socket that it has just made. Sockets that come meanwhile are seen at once.
pub const ON_DEMAND_SETTLE_NS: u64 = 2_000_000;
/// A look at the directories must be followed by a rest of this many times its own duration. So
/// those who make and remove sockets take only a small part of a processor and of the time for
/// other changes.
pub const ON_DEMAND_PAUSE_TIMES: u32 = 4;
/// Total of the rests that may be outstanding (ns). Beyond it the thread pauses after each look,
/// for [`ON_DEMAND_PAUSE_NS_MAX`] at most.
pub const ON_DEMAND_CREDIT_NS: u64 = 1_000_000_000;
/// The longest such pause.
pub const ON_DEMAND_PAUSE_NS_MAX: u64 = 10_000_000_000;

/// Security groups of one switch.
pub const GROUPS_MAX: usize = 256;
/// Rules of one group.
pub const GROUP_RULES_MAX: usize = 64;
/// Ranges of ports, or of types, in one rule.
pub const GROUP_VALUES_MAX: usize = 32;
/// Sets of groups with an ID for other hosts. One datagram names them all.
pub const GROUP_IDS_MAX: usize = 128;
/// Groups of one interface. A new connection is compared with all their rules.
pub const VIF_GROUPS_MAX: usize = 8;
/// Connections of one interface. A table's memory is allocated as connections come. There is at most one table for each
/// interface.
pub const GROUP_CONNECTIONS_MAX: usize = 131_072;
/// Bytes that a connection takes at most.
pub const GROUP_CONNECTION_BYTES_MAX: usize = 96;
/// Connections in one answer of the API.
pub const GROUP_PAGE: usize = 1000;
/// The table's unit of time is 2 to this power (ns): 17 ms.
pub const GROUP_TIME_SHIFT: u32 = 24;
/// Time after the start of an interface's table in which answers alone can add a connection (ns). An end that waits for
/// data sends nothing by itself, so after a restart only answers may come.
pub const GROUP_TAKE_UP_NS: u64 = 600_000_000_000;
/// Number of the latest refusals of one interface that are shown with their two ends.
pub const GROUP_REFUSALS: usize = 16;
/// Fragmented datagrams of one interface whose first fragment has come.
pub const GROUP_DATAGRAMS: usize = 128;
/// Time after the first fragment in which the others may come (ns).
pub const GROUP_FRAGMENTS_NS: u64 = 15_000_000_000;
/// Separate ranges of bytes that have come of such a datagram.
pub const GROUP_RANGES_MAX: usize = 8;

/// Captures at a time.
pub const CAPTURES_MAX: usize = 4;
/// Ports of one capture.
pub const CAPTURE_PORTS_MAX: usize = 16;
/// Ports that get copies of others' frames.
pub const MIRRORS_MAX: usize = 4;
/// Frames that one live trace follows.
pub const FOLLOWED_MAX: u32 = 1000;
/// Ports whose handling of one followed frame is reported: a flooded frame has many.
pub const FOLLOWED_STEPS_MAX: usize = 64;
/// Rings of one capture: workers beyond this number share them.
pub const CAPTURE_LANES_MAX: usize = 8;
/// Bytes of each ring: room for the small frames that one worker moves in some milliseconds.
pub const CAPTURE_RING_LEN: usize = 8 << 20;

/// Most addresses and prefixes that a source guard can have for one guest: each costs every frame of that guest a
/// comparison.
pub const SOURCE_ADDRESSES_MAX: usize = 32;
/// Addresses that a guest may have by DHCP at a time, if a source guard learns them. A further one replaces the address
/// that expires first.
pub const SNOOPED_LEASES_MAX: usize = 16;
/// Open DHCP requests of a guest: a further one replaces the oldest.
pub const DHCP_QUESTIONS_MAX: usize = 4;
/// Time in which the answer to a DHCP request must come (s): clients ask again after 64 s at most (RFC 2131 §4.1).
pub const DHCP_ANSWER_SECS: u32 = 64;
/// Time whose traffic is the burst of a storm budget (ns): the frames of this time at the budget's
/// rate, and at least [`STORM_BURST_MIN`] frames. ARP requests for a whole subnet come in one run.
pub const STORM_BURST_NS: u64 = 100_000_000;
/// See [`STORM_BURST_NS`].
pub const STORM_BURST_MIN: u64 = 64;
/// Frames of one sending queue that may wait, in the sender's own memory, for receivers that are full.
pub const PARKED_MAX: usize = 128;
/// Longest time for which a frame may wait for a receiver before it is dropped.
pub const PARKED_NS_MAX: u64 = 100_000_000;
/// Most frames read from one TAP queue, or packet socket, before the worker turns to the next one. Each may be a 64 KiB
/// GSO packet, so the number is smaller than for a guest's ring.
pub const TAP_BURST_MAX: usize = 32;
/// Frames of one TAP queue that may wait, in weir's memory, for receivers that are full. All of them
/// are tried again in one burst.
pub const TAP_PARKED_MAX: usize = BURST_MAX;
/// Frame buffers of one TAP queue: one burst more than may wait. Receivers without buffers thus never block frames to
/// others.
pub const TAP_SLOTS: usize = TAP_PARKED_MAX + TAP_BURST_MAX;
/// Socket buffer in the kernel for one packet socket, in each direction (bytes): some 60 GSO packets, while the usual
/// 208 KiB hold three.
pub const PACKET_SOCKET_BUFFER_LEN: usize = 4 << 20;
/// Largest MTU of an uplink by a stream socket (bytes). The kernel takes a message of up to some 32 KiB whole or not at
/// all (`unix_stream_sendmsg`), so no frame ever goes in part.
pub const STREAM_MTU_MAX: u16 = 16_000;
/// Bytes of a stream that are looked at by one call: a burst of frames of the usual length, and at least one frame.
pub const STREAM_LOOK_LEN: usize = 64 << 10;
/// Shortest time from one attempt to connect a stream uplink to the next (ns).
pub const STREAM_REDIAL_NS: u64 = 1_000_000_000;
/// Frame buffers of one AF_XDP queue in each direction. Its four rings have as many entries, so none of the rings is
/// ever too short.
pub const XDP_FRAMES: u32 = 1024;
/// Frames of one AF_XDP queue that may wait, in its own memory, for receivers that are full. All of
/// them are tried again in one burst.
pub const XDP_PARKED_MAX: usize = BURST_MAX;
/// Smallest and largest piece of memory for one AF_XDP frame (bytes): the kernel takes powers of two
/// from 2048 to a page.
pub const XDP_CHUNK_LEN_MIN: u32 = 2048;
/// See [`XDP_CHUNK_LEN_MIN`].
pub const XDP_CHUNK_LEN_MAX: u32 = 4096;
/// Most such pieces of one frame. A frame of 9018 bytes takes three.
pub const XDP_CHUNKS_MAX: u32 = 4;
/// Bytes that the kernel leaves free before each piece of a frame that arrives (`XDP_PACKET_HEADROOM`).
pub const XDP_HEADROOM_LEN: u32 = 256;
/// Pause before frames that the kernel has refused are offered to it again (ns).
pub const XDP_SEND_RETRY_NS: u64 = 1_000_000;
/// Longest wait for a queue whose former owner has just ended, when it is opened (ns): the kernel releases it in the
/// background.
pub const XDP_BUSY_NS_MAX: u64 = 1_000_000_000;

/// Worker time that a port of weight 1 gets in a round (ns): about the cost of two bursts of full-size frames. The
/// number is signed, like the deficits to which it is added.
pub const SCHEDULE_QUANTUM_NS: i64 = 20_000;
/// Largest weight of a port: the length of a round in quanta is the sum of the weights of all ready ports.
pub const WEIGHT_MAX: u16 = 100;
/// Most turns in a window of a window constraint.
pub const WINDOW_LEN_MAX: u16 = 1000;
/// Shortest and longest period of a window constraint (ns).
pub const WINDOW_PERIOD_NS_MIN: u64 = 10 * DWCS_SLOT_NS;
/// See [`WINDOW_PERIOD_NS_MIN`].
pub const WINDOW_PERIOD_NS_MAX: u64 = 1_000_000_000;
/// Deadlines of window constraints within this time are treated as equal (ns): about the time of a burst.
pub const DWCS_SLOT_NS: u64 = 10_000;
/// Lowest and highest rate limit of a port (bits/s).
pub const RATE_BITS_MIN: u64 = 64_000;
/// See [`RATE_BITS_MIN`].
pub const RATE_BITS_MAX: u64 = 1_000_000_000_000;
/// Highest rate limit of a port in frames per second.
pub const RATE_PACKETS_MAX: u32 = 1_000_000_000;
/// Smallest and largest burst of a rate in bits/s (bytes). A longer frame passes a full bucket, and the bucket then
/// owes the missing part.
pub const RATE_BURST_BYTES_MIN: u64 = 2048;
/// See [`RATE_BURST_BYTES_MIN`].
pub const RATE_BURST_BYTES_MAX: u64 = 1 << 32;
/// Largest burst of a rate in packets/s.
pub const RATE_BURST_PACKETS_MAX: u32 = 1 << 24;
/// Time whose traffic is the burst of a rate limit if none is configured (ns). A worker can be this
/// late without loss of rate.
pub const RATE_BURST_NS_DEFAULT: u64 = 1_000_000;
/// Time whose traffic is the burst of a limit on received traffic if none is configured (ns).
/// Frames beyond the burst are dropped, so the burst must hold the frames that a sender has under
/// way for some milliseconds.
pub const POLICE_BURST_NS_DEFAULT: u64 = 10_000_000;
/// Time (ns) whose traffic must gather before a queue with an empty bucket is served again; a single longer frame is
/// enough. More wake-ups would cost more than they smooth.
pub const RATE_WAIT_NS: u64 = 100_000;

/// Largest latency budget that a user can set.
pub const LATENCY_BUDGET_NS_MAX: u64 = 1_000_000_000;
/// Latency budget if none is configured.
pub const LATENCY_BUDGET_NS_DEFAULT: u64 = 250_000;
/// Largest part of the budget that is reserved for the burst in which a worker may be when a hold ends (ns). A queue
/// whose burst took longer gets fewer frames in the next bursts. So other queues wait this long at most for a guest
/// that makes its frames expensive.
pub const BURST_NS_MAX: u64 = 60_000;
/// Largest `rx_frames`: the number of buffers of the largest ring.
pub const RX_FRAMES_MAX: u16 = QUEUE_SIZE_MAX;

/// Bytes of frames that fill a container if none are configured (Thakur 2014: one page).
pub const CONTAINER_BYTES_DEFAULT: u32 = 4096;
/// Largest `container_bytes`: room for several of the largest frames.
pub const CONTAINER_BYTES_MAX: u32 = 262_144;
/// Largest container in a guest's receive buffer (bytes, its virtio header included): the container's length field has
/// 16 bits.
pub const CONTAINER_LEN_MAX: usize = 65_535;

/// Largest vhost-user message body that weir accepts. The largest known body is a full memory table (8 + 8 * 32 bytes);
/// the rest is room for messages like `SET_CONFIG` that are refused politely.
pub const VHOST_USER_BODY_MAX: usize = 4096;
/// Most file descriptors with one message (one per region of a memory table).
pub const VHOST_USER_FDS_MAX: usize = 8;
/// Most bytes of replies that wait for a front end which doesn't read them.
pub const VHOST_USER_OUTBOUND_BYTES_MAX: usize = 16 * 1024;
/// Time for which weir's own front end waits until a back end accepts a request and answers it.
pub const VHOST_USER_REPLY_NS_MAX: u64 = 5_000_000_000;
/// Longest time (ns) that the thread which writes calls may spend on one pipe or socket of a front end, or on closing
/// it; more is an error. A write returns at once, even without room. The bound is the longest wait for a CPU on a busy
/// machine.
pub const CALL_STUCK_NS: u64 = 1_000_000_000;
/// Cost of a call that is charged to the sender's burst (ns): several times the cost of a call that interrupts a
/// virtual processor. The called port pays the rest.
pub const CALL_NS_USUAL_MAX: u64 = 10_000;
/// Highest average cost of the calls of one descriptor (ns), by the caller's CPU clock. A front end at exactly this
/// average is still served. With a higher bound it could take more from its neighbours; with a lower one, ports on slow
/// hosts might stop.
pub const CALL_NS_MAX: u64 = 100_000;
/// Cost above the average that calls may accumulate before the port stops (ns): the most that a front end can take once
/// from others that share its worker. A pause by the host of weir's machine can look like such a cost, so the bound is
/// more than a few of the host's time slices.
pub const CALL_DEBT_NS_MAX: u64 = 20_000_000;
/// Time for which a port that was stopped for expensive calls stays stopped, whatever its front end does (ns): each
/// start costs others at least one expensive call.
pub const CALL_PAUSE_NS: u64 = 1_000_000_000;
/// Time (ns) for which a port's memory can keep a worker waiting, beyond one part in [`BLOCKED_SHARE`] of all time,
/// before the port stops. With a higher bound, all others of that worker would notice; with a lower one, guests on a
/// host that sometimes swaps would stop.
pub const BLOCKED_NS_MAX: u64 = 100_000_000;
/// Divisor for the part of all time in which a port may keep a worker waiting. A port that was stopped for more stays
/// stopped for this multiple of its last wait.
pub const BLOCKED_SHARE: u64 = 100;
/// Number of calls after an expensive one for which the CPU clock is read before and after each.
pub const CALLS_WATCHED: u32 = 64;
/// Largest MTU that `NET_SET_MTU` or the configuration may set.
pub const MTU_MAX: u16 = 65_535;
/// Smallest MTU (IPv4 requires 68).
pub const MTU_MIN: u16 = 68;

/// Largest body of a request on the control socket: a configuration.
pub const CONTROL_REQUEST_BYTES_MAX: usize = CONFIG_BYTES_MAX as usize;
/// Largest head of a request: its first line and its headers.
pub const CONTROL_HEAD_BYTES_MAX: usize = 16 * 1024;
/// Addresses in one answer: as many as take some milliseconds and a megabyte.
pub const CONTROL_ADDRESSES_MAX: usize = 4096;
/// Ports or interfaces in one answer. A page of this number of ports, each with every queue in use,
/// has a megabyte.
pub const CONTROL_PORTS_MAX: usize = 256;
/// Ports whose counters are read and written in one turn of a thread, with every queue in use: some milliseconds.
pub const CONTROL_PORTS_TOGETHER_MAX: usize = 32;
/// Most bytes of all answers together that clients have yet to take: room for three of the largest, with every port
/// and every queue. A further answer ends the one that waits longest, of the user with the most bytes.
pub const CONTROL_UNREAD_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// Most headers of a request.
pub const CONTROL_HEADERS_MAX: usize = 64;
/// Largest answer a client reads: the counters of [`PORTS_MAX`] ports with every queue, with room.
pub const CONTROL_RESPONSE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Most connections to the control socket at one time. A further one replaces the connection that waits longest, of the
/// user with the most connections, and of the process with the most.
pub const CONTROL_CONNECTIONS_MAX: usize = 32;
/// Threads that handle requests.
pub const CONTROL_WORKERS: usize = 6;
/// The threads among them for requests of readers; a user gets one.
pub const CONTROL_READERS: usize = 3;
/// Most of the other threads that wait for expressions to be compiled; a user gets one.
pub const CONTROL_COMPILES: usize = 2;
/// Time that a control connection has to send a head, to send a body, and to receive an answer.
pub const CONTROL_TIMEOUT_SECS: u64 = 5;
/// Time for which `weir reload` waits for its answer: removing interfaces whose guests are stuck takes time.
pub const RELOAD_TIMEOUT_SECS: u64 = 120;
/// Shortest and longest token of the API over TCP (bytes).
pub const CONTROL_TOKEN_LEN_MIN: usize = 16;
/// See [`CONTROL_TOKEN_LEN_MIN`].
pub const CONTROL_TOKEN_LEN_MAX: usize = 1024;
/// Most users that `admin` names.
pub const ADMINS_MAX: usize = 64;

/// Events that wait for a slow reader. The reader learns only the number of further events.
pub const EVENTS_WAITING_MAX: usize = 1024;
/// Words of a program that runs when a port comes up or goes down: its path and its arguments.
pub const PROGRAM_WORDS_MAX: usize = 16;
/// Longest argument of such a program (bytes).
pub const PROGRAM_WORD_LEN_MAX: usize = 255;
/// Most of these programs that run at the same time.
pub const PROGRAMS_AT_ONCE_MAX: usize = 4;
/// Time (ns) after which such a program is killed.
pub const PROGRAM_NS_MAX: u64 = 10_000_000_000;
/// Shortest time (ns) between two starts of such a program for one port: a guest can begin and end as often as it
/// likes.
pub const PROGRAM_PAUSE_NS: u64 = 1_000_000_000;
/// Output of one run that goes into the log (bytes); the rest is read and dropped.
pub const PROGRAM_OUTPUT_BYTES_MAX: usize = 512;
/// Ports about which one message says whether they are up.
pub const PROGRAM_PORTS_TOGETHER_MAX: usize = 256;
/// Longest time (ns) that the end of weir gives to the programs of ports that go down with it. A program that takes
/// longer runs on, unless the service manager ends it.
pub const PROGRAMS_AT_END_NS: u64 = 500_000_000;
/// Pause (ns) after which the process that takes a bridge back checks again whether somebody has
/// confirmed.
pub const BRIDGE_LOOK_NS: u64 = 200_000_000;
/// Shortest and longest time (s) for which a bridge waits to be confirmed, and the usual one.
pub const BRIDGE_WITHIN_SECS_MIN: u64 = 5;
/// See [`BRIDGE_WITHIN_SECS_MIN`].
pub const BRIDGE_WITHIN_SECS_MAX: u64 = 3600;
/// See [`BRIDGE_WITHIN_SECS_MIN`].
pub const BRIDGE_WITHIN_SECS_DEFAULT: u64 = 60;
/// Interval at which the switch is checked while somebody reads events, or programs run for its ports (ns).
pub const EVENTS_LOOK_NS: u64 = 250_000_000;
/// Events that are kept until the next check.
pub const EVENTS_TOLD_MAX: usize = 64;
/// Time without a drop (ns) after which drops are reported as new.
pub const DROPS_QUIET_NS: u64 = 10_000_000_000;
/// Shortest interval between two reports of budget breaches (ns).
pub const BREACHES_TOLD_NS: u64 = 1_000_000_000;
/// Interval at which a comment is sent to readers while there are no events (s): it detects a reader that has
/// disconnected.
pub const EVENTS_KEEP_ALIVE_SECS: u64 = 15;

/// Longest line that `weir-agent` and weir send each other, with its newline (bytes).
pub const AGENT_LINE_BYTES_MAX: usize = 4096;
/// Most bytes that wait for the other side of an agent's port which doesn't read them.
pub const AGENT_OUTBOUND_BYTES_MAX: usize = 4 * AGENT_LINE_BYTES_MAX;
/// Most bytes that weir reads from an agent before it turns to others.
pub const AGENT_READ_BYTES_MAX: usize = 4 * AGENT_LINE_BYTES_MAX;
/// Longest text in a message (a version, the name of an interface, the reason of a failure), in characters.
pub const AGENT_TEXT_LEN_MAX: usize = 96;
/// Most virtio-net interfaces of one guest that an agent speaks for.
pub const AGENT_INTERFACES_MAX: usize = 16;
/// Lines that an agent can send in a second, and at once after a rest: for each interface a report, ten answers to
/// settings (the manager runs ten times a second), and a hello.
pub const AGENT_LINES_PER_S_MAX: u32 = 12 * AGENT_INTERFACES_MAX as u32;
/// Bytes that an agent can send in a second, and at once after a rest: the permitted lines at a quarter of their
/// maximum length.
pub const AGENT_BYTES_PER_S_MAX: u32 = AGENT_LINES_PER_S_MAX * AGENT_LINE_BYTES_MAX as u32 / 4;
/// Interval at which each side shows that it is alive (ns): the agent by its reports, weir by a ping.
pub const AGENT_PERIOD_NS: u64 = 1_000_000_000;
/// Silence after which the other side counts as disconnected (ns).
pub const AGENT_SILENCE_NS: u64 = 3 * AGENT_PERIOD_NS;
/// Shortest and longest interval at which a guest can be made to poll (ns). At shorter ones, the guest's timer costs
/// more than the calls. At longer ones, a ring of 256 fills up between two polls at 25,000 frames/s.
pub const AGENT_POLL_NS_MIN: u64 = 10_000;
/// See [`AGENT_POLL_NS_MIN`].
pub const AGENT_POLL_NS_MAX: u64 = 10_000_000;
/// Fewest consecutive polls without a frame before a guest's interrupts are enabled again.
pub const AGENT_EMPTY_POLLS_MIN: u32 = 2;
/// The longest pause in traffic through which a guest continues to poll (ns). An empty poll costs a guest about one
/// interrupt. Through longer pauses (those of a napping worker are up to nine times as long), polling would cost more
/// than interrupts.
pub const AGENT_POLL_PAUSE_NS: u64 = 100_000;
/// Longest time that one report of an agent can cover (ns).
pub const AGENT_INTERVAL_NS_MAX: u64 = 60_000_000_000;
/// Smallest and largest cost of one interrupt that weir accepts from an agent (ns): the smallest is a few hundred
/// cycles, the largest a hundred times the value that Dong 2011 measured.
pub const AGENT_COST_NS_MIN: u64 = 100;
/// See [`AGENT_COST_NS_MIN`].
pub const AGENT_COST_NS_MAX: u64 = 400_000;
/// Most interrupts, and most packets, in a second that weir accepts from an agent.
pub const AGENT_EVENTS_PER_S_MAX: u64 = 100_000_000;
/// Most CPUs of a guest that weir accepts from an agent.
pub const AGENT_CPUS_MAX: u64 = 4096;
/// Largest file in which an agent keeps the settings it found.
pub const AGENT_STATE_BYTES_MAX: u64 = 512 * 1024;
/// Most NAPI instances of an interface whose own settings are kept while the interface's are changed.
pub const AGENT_NAPIS_MAX: usize = 256;
/// Largest file that an agent reads under `/proc`: `/proc/interrupts` of a guest with hundreds of CPUs.
pub const AGENT_PROC_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Largest file in which weir keeps the original settings of an uplink's interface (bytes).
pub const UPLINK_FOUND_BYTES_MAX: u64 = 32 * 1024;
/// Largest configuration file.
pub const CONFIG_BYTES_MAX: u64 = 1024 * 1024;
/// Most memory that the parsing of a configuration may take: enough for any file of [`CONFIG_BYTES_MAX`] with spaces
/// and line breaks.
pub const CONFIG_COST_BYTES_MAX: u64 = 96 * 1024 * 1024;
/// Most memory that the parsing of a configuration may take if the request comes from neither root nor weir's own user.
/// With the answer it is less than [`CONFIG_MEMORY_BYTES_MAX`].
pub const CONFIG_COST_OF_ADMINS_BYTES_MAX: u64 = 12 * 1024 * 1024;
/// Most memory that weir takes for a request from such a user. The memory is freed afterwards.
pub const CONFIG_MEMORY_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Longest text in which all TOML mistakes are searched for (bytes). In a longer text, only the first mistake is found.
pub const CONFIG_MISTAKES_LEN_MAX: usize = 16 * 1024;
/// Most problems of a configuration that are shown; the others are counted. A person fixes a few and checks again, and
/// each shown problem takes a walk through the file.
pub const CONFIG_PROBLEMS_SHOWN_MAX: usize = 50;
/// Most problems that are searched for. A check after their repair finds the others.
pub const CONFIG_PROBLEMS_MAX: usize = 1000;
/// Most places that one problem names.
pub const CONFIG_PLACES_SHOWN_MAX: usize = 8;
/// Longest piece of a configuration that is repeated in a message (characters).
pub const CONFIG_TEXT_SHOWN_MAX: usize = 200;
/// Longest line of a configuration that is shown (bytes). For a longer line, only the position is named.
pub const CONFIG_LINE_SHOWN_MAX: usize = 1000;
/// Panics of a worker that concern no port, after which weir ends: the restart makes its memory intact again.
pub const WORKER_PANICS_MAX: u32 = 16;
/// Panics of a thread other than a worker after which the thread ends, and with it its function.
pub const THREAD_PANICS_MAX: u32 = 16;
/// Pause of a thread that has panicked before it starts again (ns).
pub const THREAD_PAUSE_NS: u64 = 100_000_000;
/// Longest time that an orderly end may take (ns); after it, weir ends at once. Together with [`END_UNDOES_NS`] it is
/// below two seconds.
pub const END_IN_ORDER_NS: u64 = 1_300_000_000;
/// Time that a weir which ends without waiting may take to restore settings and to report that (ns).
pub const END_UNDOES_NS: u64 = 400_000_000;
/// Time (ns) within which each thread must begin a new turn before this weir leaves its guests to its successor.
pub const LEAVES_WITHIN_NS: u64 = 1_000_000_000;
/// Time (ns) without a new turn after which a thread that does not sleep is stuck.
pub const STANDS_STILL_NS: u64 = 5_000_000_000;
/// Interval of the watchdog (ns); shorter if the service manager asks for more frequent signs of life.
pub const WATCHDOG_LOOK_NS: u64 = 2_000_000_000;
/// Pause before weir connects to xenstore again after an error (ns).
pub const XENSTORE_PAUSE_NS: u64 = 1_000_000_000;
/// Most worker threads.
pub const WORKERS_MAX: usize = 64;
/// Most processors of a machine on which weir places its workers (`CPU_SETSIZE` of sched_setaffinity(2)).
pub const CPUS_MAX: usize = 1024;
/// Largest file that is read under `/sys` (bytes): a list of [`CPUS_MAX`] processors one by one has 5 KB.
pub const SYSFS_BYTES_MAX: u64 = 16 * 1024;
/// Most caches of one processor that are read (`cache/index0`, ...).
pub const CACHE_INDEXES_MAX: u32 = 8;
/// Largest `/proc/PID/task/TID/stat` (bytes): 52 numbers and a name.
pub const PROC_STAT_BYTES_MAX: u64 = 4096;
/// Longest name of a port.
pub const PORT_NAME_LEN_MAX: usize = 32;
/// Longest name of a network interface (Linux: `IFNAMSIZ` - 1).
pub const IFNAME_LEN_MAX: usize = 15;
/// Longest path of a Unix socket that is listened on (`sun_path` of `sockaddr_un` less its NUL).
pub const SOCKET_PATH_LEN_MAX: usize = 107;
/// Longest path of a socket that weir connects to. weir opens the file first, and connects by its
/// descriptor. Volumes of pods have longer paths than the kernel's calls take.
pub const DIALED_PATH_LEN_MAX: usize = 255;
/// Longest name of a user (bytes; useradd(8)).
pub const USER_NAME_LEN_MAX: usize = 32;
/// Largest VLAN id a port may use (IEEE 802.1Q: 4095 is reserved).
pub const VLAN_ID_MAX: u16 = 4094;

/// Most logical CPUs of a host in the lab.
pub const LAB_CPUS_MAX: usize = 1024;
/// Longest run, wait or period in the lab (ns): an hour.
pub const LAB_NS_MAX: u64 = 3_600_000_000_000;
/// Largest cost in a profile of the lab, in the cost's own unit: a second, if that is ns.
pub const LAB_COST_MAX: u64 = 1_000_000_000;
/// Fastest link in the lab (bits a second).
pub const LAB_BITS_PER_S_MAX: u64 = 1_000_000_000_000;
/// Largest weight of a thread in the lab, where 1024 is usual.
pub const LAB_WEIGHT_MAX: u32 = 1 << 20;
/// Most runs of one experiment in the lab: points of its sweeps, times its seeds.
pub const LAB_RUNS_MAX: usize = 1_000;
/// Most events of one experiment in the lab, all its runs together.
pub const LAB_EVENTS_MAX: u64 = 1_000_000_000;
/// Most events of an experiment in the lab with varied costs of its machine, of all variations together.
pub const LAB_SENSITIVITY_EVENTS_MAX: u64 = 10 * LAB_EVENTS_MAX;
/// Most events of a plan for a host in the lab, of all its simulations together.
pub const LAB_PLAN_EVENTS_MAX: u64 = 4 * LAB_EVENTS_MAX;
/// Most flows of one experiment in the lab, of all guests together.
pub const LAB_FLOWS_MAX: usize = 4_096;
/// Most clients of one load in the lab.
pub const LAB_CLIENTS_MAX: u32 = 1 << 16;
/// Widest TCP window (segments) and longest queue before a link (frames) in the lab.
pub const LAB_QUEUE_MAX: u32 = 1 << 20;

/// Longest xenstore payload (bytes; Xen `XENSTORE_PAYLOAD_MAX`).
pub const XENSTORE_PAYLOAD_MAX: usize = 4096;
/// Longest message that can be written to `/dev/xen/xenbus`, with its header (bytes): the size of the kernel's buffer
/// for messages.
pub const XENSTORE_REQUEST_MAX: usize = 4096;
/// Most attempts of a xenstore transaction that conflicts with writes of others.
pub const XENSTORE_TRANSACTION_TRIES_MAX: u32 = 64;
/// Most segments that one system call copies between grants and weir's memory.
pub const GRANT_COPY_MAX: usize = 256;
/// Most frames of a Xen guest's transmit queue that wait for receivers: they are tried in one burst.
pub const XEN_PARKED_MAX: usize = BURST_MAX;
/// Most multicast addresses that a Xen guest may ask for (netback's `XEN_NETBK_MCAST_MAX`).
pub const XEN_MULTICAST_MAX: usize = 64;
/// Most requests of one control ring that are answered before those of other rings.
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
    // Each port has room for a whole memory table, and for the table that replaces it.
    assert!(PORTS_MAX * MEM_REGIONS_FLOOR <= MEM_REGIONS_TOTAL_MAX);
    // A share is more than the floor, and one interface alone can have the largest `memory_max`.
    assert!(PORTS_MAX as u64 * MEMORY_FLOOR <= MEMORY_TOTAL_MAX / MEMORY_SHARED_PART);
    assert!(
        MEM_TABLES_MAX as u64 * MEMORY_MAX_MAX
            <= MEMORY_TOTAL_MAX - (PORTS_MAX as u64 - 1) * MEMORY_FLOOR
    );
    assert!(VHOST_USER_FDS_MAX >= MEM_TABLE_REGIONS_MAX);
    assert!(VHOST_USER_BODY_MAX >= 8 + MEM_TABLE_REGIONS_MAX * 32);
    assert!(VHOST_USER_OUTBOUND_BYTES_MAX >= 12 + VHOST_USER_BODY_MAX);
    assert!(QUEUE_SIZE_MAX.is_power_of_two());
    // The message holds names of 15 letters with quotes and a comma, or processors of four digits with a comma.
    assert!(HELPER_MESSAGE_BYTES_MAX > PORTS_MAX * 18 + NETWORKS_MAX * 9 + 1024);
    // The message has, for each host, a number of eight digits, six numbers of three digits, and words.
    assert!(HELPER_MESSAGE_BYTES_MAX > EVPN_BATCH * 96 + 1024);
    assert!(HELPER_MESSAGE_BYTES_MAX > CPUS_MAX * 5 + 1024);
    // JSON has up to six letters for a byte of a path, and two for one of the names of a user and a group.
    assert!(
        HELPER_MESSAGE_BYTES_MAX
            > HELPER_SOCKETS_TOGETHER_MAX * (6 * SOCKET_PATH_LEN_MAX + 4 * USER_NAME_LEN_MAX + 192)
    );
    assert!(IOTLB_ASKS_MAX > 3 * VRINGS_MAX && IOTLB_ASKS_MAX < IOTLB_ENTRIES_MAX);
    // A session with a whole table of regions may have all of its rings in pieces.
    assert!(3 * VRINGS_MAX * IOTLB_PIECES_MAX <= (MEM_TABLES_MAX - 1) * MEM_SLOTS_MAX);
    assert!(IOTLB_WAIT_NS_MAX <= SESSION_STALL_NS && IOTLB_ASK_AGAIN_NS < IOTLB_WAIT_NS_MAX);
    assert!(SESSION_CPU_PERCENT > 0 && SESSION_CPU_PERCENT < 100 && SESSIONS_PER_SEC_MAX <= 1000);
    assert!(SESSIONS_CPU_PERCENT.is_multiple_of(SESSION_CPU_PERCENT) && SESSIONS_CPU_PERCENT < 100);
    assert!(FOREIGN_CLOSE_NS_MAX < SESSION_GRACE_NS && FOREIGN_CLOSES_MAX > 0);
    assert!(SESSION_GRACE_NS < SESSION_END_NS && ACCEPT_PAUSE_NS < SESSION_GRACE_NS);
    assert!(SESSIONS_PER_SEC_MAX * SESSION_QUIET_NS >= 10 * 1_000_000_000);
    // The limit is enough for all ports with all their queues, and as much again for the switch itself.
    assert!(DESCRIPTORS_MAX as usize > 2 * PORTS_MAX * (3 * VRINGS_MAX + 4));
    assert!(CALL_NS_USUAL_MAX < CALL_NS_MAX && 100 * CALL_NS_MAX < CALL_DEBT_NS_MAX);
    assert!(CALL_DEBT_NS_MAX < CALL_STUCK_NS && CALLS_WATCHED > 0);
    // A port that makes its calls expensive again and again takes a tenth of a worker at most.
    assert!(10 * CALL_DEBT_NS_MAX <= CALL_PAUSE_NS);
    assert!(SESSION_CPU_BURST_NS < SESSION_GRACE_NS && SESSION_TURN_NS < SESSION_CPU_BURST_NS);
    assert!(SESSION_CPU_DEBT_NS * 100 / SESSION_CPU_PERCENT < SESSION_STALL_NS);
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
    assert!(2 * PROGRAMS_AT_END_NS < END_IN_ORDER_NS && PROGRAM_PAUSE_NS < PROGRAM_NS_MAX);
    // libpcap's error message quotes the expression at most once.
    assert!(FILTER_ANSWER_LEN_MAX > 2 * FILTER_EXPRESSION_LEN_MAX);
    assert!(FILTER_COMPILE_SECS < CONTROL_TIMEOUT_SECS);
    // A restart of weir leaves time for the hook's questions.
    assert!(LIBVIRT_HOOK_PATIENCE_SECS + 2 * CONTROL_TIMEOUT_SECS < LIBVIRT_HOOK_TIMEOUT_SECS);
    assert!(FILTER_WINDOW_LEN > HEAD_LEN && FILTER_RULES_MAX < u8::MAX as usize);
    assert!(FILTER_RULES_MAX * (FILTER_EXPRESSION_LEN_MAX + 256) < CONTROL_REQUEST_BYTES_MAX);
    assert!(TAP_BURST_MAX <= BURST_MAX && TAP_PARKED_MAX <= BURST_MAX);
    assert!(TAP_SLOTS <= u16::MAX as usize);
    assert!(
        STREAM_MTU_MAX as usize + 64 < STREAM_LOOK_LEN && (STREAM_MTU_MAX as u32) < FRAME_LEN_MAX
    );
    assert!(OVERLAY_HOSTS_MAX >= NETWORKS_MAX * 2 * OVERLAY_PEERS_MAX);
    // The number of a former host is given to another one after 2,000 others at the earliest.
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
    // Moves at the lowest rate are enough for a check.
    assert!(LOOP_MOVES_PER_S * LOOP_LOOK_NS <= LOOP_MOVES_MIN * 1_000_000_000);
    // A loop is found within 200 ms: a check, and the first probe out of both ports.
    assert!(LOOP_LOOK_NS + 2 * LOOP_PROBE_LOOKS as u64 * LOOP_PROBE_LOOK_NS < 200_000_000);
    // A pair is not probed again while it is being probed.
    assert!((LOOP_PROBES * 2 * LOOP_PROBE_LOOKS) as u64 * LOOP_PROBE_LOOK_NS < LOOP_AGAIN_NS);
    assert!(LOOP_RETRY_NS < LOOP_RETRY_NS_MAX);
    // An address is noted as three numbers in brackets, of up to 4, 15 and 10 digits. The learned addresses leave room
    // for all settings: for each port all rules, whose characters may be escaped as two, and 8 KiB for its other keys.
    assert!(
        FDB_ENTRIES_MAX * 40
            + PORTS_MAX * (FILTER_RULES_MAX * (2 * FILTER_EXPRESSION_LEN_MAX + 64) + (8 << 10))
            < KEPT_NOTED_BYTES_MAX as usize
    );
    assert!(FDB_NETWORK_PART > FDB_OVERLAY_PART && NETWORKS_MAX <= 4096);
    assert!(INDIRECTION_LEN.is_power_of_two() && INDIRECTION_LEN >= QUEUE_PAIRS_MAX);
    // The uplinks of a bond that carry frames are the bits of a byte.
    assert!(BOND_UPLINKS_MAX <= u8::BITS as usize);
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
    assert!(CONTROL_PORTS_TOGETHER_MAX < CONTROL_PORTS_MAX);
    // There is always a connection whose request does not run, and which can be replaced.
    assert!(CONTROL_WORKERS + CONTROL_COMPILES < CONTROL_CONNECTIONS_MAX);
    // The reserve suffices for as many connections that have been replaced as are served.
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
    // The largest line is a hello with the longest names; JSON makes at most twice as many characters of them.
    assert!(
        AGENT_INTERFACES_MAX * (80 + 2 * IFNAME_LEN_MAX) + 4 * AGENT_TEXT_LEN_MAX + 160
            < AGENT_LINE_BYTES_MAX
    );
    // An instance takes at most 100 bytes: an id of ten digits, two numbers of up to 20, and names.
    assert!(AGENT_NAPIS_MAX as u64 * 110 + 1024 < UPLINK_FOUND_BYTES_MAX);
    assert!(AGENT_INTERFACES_MAX as u64 * UPLINK_FOUND_BYTES_MAX <= AGENT_STATE_BYTES_MAX);
    assert!(2 * AGENT_PERIOD_NS < AGENT_SILENCE_NS && AGENT_SILENCE_NS < AGENT_INTERVAL_NS_MAX);
    assert!(AGENT_POLL_NS_MIN < AGENT_POLL_NS_MAX && AGENT_POLL_NS_MAX <= LATENCY_BUDGET_NS_MAX);
    assert!(AGENT_POLL_PAUSE_NS / AGENT_POLL_NS_MIN <= 10 && AGENT_COST_NS_MIN < AGENT_COST_NS_MAX);
    assert!(QUEUE_PAIRS_MAX <= u8::MAX as usize);
};
