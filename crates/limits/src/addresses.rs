//! Bounds of weir's own services to the guests of a network: its own addresses, and DHCP.

use crate::{PORTS_MAX, SNOOPED_LEASES_MAX};

/// Addresses of weir's own in one network.
pub const OWN_ADDRESSES_MAX: usize = 8;
/// DNS servers that guests learn by DHCP.
pub const DHCP_DNS_MAX: usize = 4;
/// Routes that guests learn by DHCP. All of them, each of 9 bytes at most, and the default route fit into one option
/// (RFC 3442).
pub const DHCP_ROUTES_MAX: usize = 16;
const _: () = assert!(DHCP_ROUTES_MAX * 9 + 5 <= u8::MAX as usize);
/// Files that firmware boots from, one for each kind of client, and bytes of a file's name: a message has room for 128
/// with the zero byte at the end (RFC 2131 §2).
pub const BOOT_FILES_MAX: usize = 16;
/// See [`BOOT_FILES_MAX`].
pub const BOOT_FILE_LEN_MAX: usize = 127;
/// Networks with a way out through the host, and ports of the host that are forwarded to guests of one network.
pub const WAYS_OUT_MAX: usize = 4;
/// See [`WAYS_OUT_MAX`].
pub const FORWARDS_MAX: usize = 32;
// The helper gets all of them in one message, beside other data.
const _: () = assert!(
    WAYS_OUT_MAX * (FORWARDS_MAX * 112 + OWN_ADDRESSES_MAX * 48 + 256)
        < crate::HELPER_MESSAGE_BYTES_MAX / 2
);
/// Interval of unsolicited router advertisements (s), and the lifetimes that they carry: multiples of the interval (RFC
/// 4861 §6.2.1, RFC 8106 §5.1). Addresses made from a prefix stay valid for a day without weir.
pub const RA_INTERVAL_SECS: u64 = 300;
/// See [`RA_INTERVAL_SECS`].
pub const RA_ROUTER_SECS: u16 = 1_800;
/// See [`RA_INTERVAL_SECS`].
pub const RA_DNS_SECS: u32 = 1_800;
/// See [`RA_INTERVAL_SECS`].
pub const RA_PREFERRED_SECS: u32 = 14_400;
/// See [`RA_INTERVAL_SECS`].
pub const RA_VALID_SECS: u32 = 86_400;
const _: () = assert!(3 * RA_INTERVAL_SECS <= RA_ROUTER_SECS as u64);
const _: () =
    assert!(RA_ROUTER_SECS as u32 <= RA_PREFERRED_SECS && RA_PREFERRED_SECS < RA_VALID_SECS);
/// Bytes of a network's domain: a guest's name and a dot come before it, and the whole name has 253 at most (RFC 1035
/// §2.3.4).
pub const DOMAIN_LEN_MAX: usize = 200;
const _: () = assert!(DOMAIN_LEN_MAX + 1 + crate::PORT_NAME_LEN_MAX <= 253);
/// Shortest, longest and default lease time (s).
pub const LEASE_SECS_MIN: u64 = 120;
/// See [`LEASE_SECS_MIN`].
pub const LEASE_SECS_MAX: u64 = 30 * 86_400;
/// See [`LEASE_SECS_MIN`].
pub const LEASE_SECS_DEFAULT: u64 = 3_600;
/// Time (s) for which an offered address is reserved: a client tries for about as long (RFC 2131 §4.1).
pub const OFFER_SECS: u32 = 64;
/// Time (s) for which an address that a client has found in use is given to nobody.
pub const DECLINED_SECS: u32 = 600;
/// Addresses that clients of one interface can have at a time. A source guard notes as many.
pub const LEASES_PER_VIF_MAX: usize = 16;
const _: () = assert!(LEASES_PER_VIF_MAX <= SNOOPED_LEASES_MAX);
/// Leases that are remembered in one network: the present ones, and former ones.
pub const LEASES_MAX: usize = 4 * PORTS_MAX;
/// Bytes for each of the two copies of the leases in their file. One copy is whole while the other
/// is written.
pub const LEASES_BYTES_MAX: usize = 4 << 20;
// Each lease may have the longest client identifier, written as digits.
const _: () = assert!(LEASES_MAX * 768 <= LEASES_BYTES_MAX);
/// Bytes behind those copies for leases that have changed since all leases were written.
pub const LEASES_NOTED_BYTES_MAX: usize = 64 << 10;
/// Pause (s) before leases that could not be saved are saved again.
pub const LEASES_RETRY_SECS: u64 = 1;
/// Frames for weir itself that one interface can send in a second, and at once.
pub const OWN_FRAMES_PER_SEC: u64 = 100;
/// See [`OWN_FRAMES_PER_SEC`].
pub const OWN_FRAMES_BURST: u64 = 32;
/// Frames of one interface that wait to be processed.
pub const OWN_FRAMES_WAITING_MAX: usize = 8;
/// Bytes of such a frame: one with an MTU of 1500.
pub const OWN_FRAME_LEN_MAX: usize = 1514;
/// Limits of one interface's DNS questions: in a second, in a burst, and waiting to be processed. A browser sends
/// dozens at a time.
pub const DNS_PER_SEC: u64 = 200;
/// See [`DNS_PER_SEC`].
pub const DNS_BURST: u64 = 100;
/// See [`DNS_PER_SEC`].
pub const DNS_WAITING_MAX: usize = 32;
/// Pending questions to the host's resolver, of one interface and of a network. Beyond the network's limit, each
/// interface can still have one.
pub const DNS_ASKED_PER_VIF_MAX: usize = 32;
/// See [`DNS_ASKED_PER_VIF_MAX`].
pub const DNS_ASKED_MAX: usize = 1_024;
/// Sockets to the resolver that one network uses at a time, and the time (s) for which each is used. Their ports
/// change, so that an attacker does not know them.
pub const DNS_SOCKETS_MAX: usize = 8;
/// See [`DNS_SOCKETS_MAX`].
pub const DNS_SOCKET_SECS: u64 = 60;
/// The time (s) for an answer before the next resolver is asked. A guest asks again after 5 s (resolv.conf(5)).
pub const DNS_TIMEOUT_SECS: u64 = 2;
/// Bytes of an answer: the size that any guest accepts (RFC 1035 §2.3.4), and the size that fits into a packet of any
/// IPv6 network (RFC 8200 §5).
pub const DNS_PAYLOAD_MIN: u16 = 512;
/// See [`DNS_PAYLOAD_MIN`].
pub const DNS_PAYLOAD_MAX: u16 = 1_232;
/// Connections (TCP) of one interface for DNS, and of a network. Beyond the network's limit, each interface can still
/// have one.
pub const DNS_STREAMS_PER_VIF_MAX: usize = 8;
/// See [`DNS_STREAMS_PER_VIF_MAX`].
pub const DNS_STREAMS_MAX: usize = 256;
/// The time (s) for which such a connection lasts after its last question, and the number of its questions.
pub const DNS_STREAM_SECS: u64 = 10;
/// See [`DNS_STREAM_SECS`].
pub const DNS_STREAM_QUESTIONS_MAX: usize = 32;
/// Bytes of one question, and of the answers that the guest has not acknowledged. Signed answers of root servers have
/// 2 KiB.
pub const DNS_STREAM_QUESTION_BYTES_MAX: usize = 1_024;
/// See [`DNS_STREAM_QUESTION_BYTES_MAX`].
pub const DNS_STREAM_ANSWERS_BYTES_MAX: usize = 16 << 10;
/// Connections to the host's resolvers for long answers, of one interface and of a network.
pub const DNS_CALLS_PER_VIF_MAX: usize = 2;
/// See [`DNS_CALLS_PER_VIF_MAX`].
pub const DNS_CALLS_MAX: usize = 16;
/// The time (s) for which a guest can cache another guest's address.
pub const DNS_TTL_SECS: u32 = 30;
/// Resolvers that the host has (`MAXNS` of resolv.conf(5)), and bytes of the file that are read.
pub const RESOLVERS_MAX: usize = 3;
/// See [`RESOLVERS_MAX`].
pub const RESOLV_CONF_BYTES_MAX: u64 = 64 << 10;
/// Answers of one network that wait to be sent.
pub const OWN_ANSWERS_MAX: usize = OWN_FRAMES_WAITING_MAX * PORTS_MAX;
const _: () = assert!(DNS_ASKED_MAX < OWN_ANSWERS_MAX);
