//! Bounds of what weir does for guests of a network by itself: answers for its own addresses, and DHCP.

use crate::{PORTS_MAX, SNOOPED_LEASES_MAX};

/// Addresses of weir's own in one network.
pub const OWN_ADDRESSES_MAX: usize = 8;
/// Servers of names that guests are told of.
pub const DHCP_DNS_MAX: usize = 4;
/// Bytes of a network's domain: a guest's name and a dot come before it, and all of it has 253 at most (RFC 1035 §2.3.4).
pub const DOMAIN_LEN_MAX: usize = 200;
const _: () = assert!(DOMAIN_LEN_MAX + 1 + crate::PORT_NAME_LEN_MAX <= 253);
/// The shortest and the longest time (s) for which an address is given, and that where nothing is configured.
pub const LEASE_SECS_MIN: u64 = 120;
/// See [`LEASE_SECS_MIN`].
pub const LEASE_SECS_MAX: u64 = 30 * 86_400;
/// See [`LEASE_SECS_MIN`].
pub const LEASE_SECS_DEFAULT: u64 = 3_600;
/// How long (s) an address that was offered waits to be asked for: a client tries for about as long (RFC 2131 §4.1).
pub const OFFER_SECS: u32 = 64;
/// How long (s) an address is given to nobody that a client has found in use.
pub const DECLINED_SECS: u32 = 600;
/// Addresses that clients of one interface have at a time. A source guard notes as many.
pub const LEASES_PER_VIF_MAX: usize = 16;
const _: () = assert!(LEASES_PER_VIF_MAX <= SNOOPED_LEASES_MAX);
/// Addresses that are remembered in one network: those that guests have, and those that they had.
pub const LEASES_MAX: usize = 4 * PORTS_MAX;
/// Bytes that the file of leases has for them, twice: one is whole while the other is written.
pub const LEASES_BYTES_MAX: usize = 4 << 20;
// With the longest client identifier as digits.
const _: () = assert!(LEASES_MAX * 768 <= LEASES_BYTES_MAX);
/// Frames for weir itself that one interface may send in a second, and at once.
pub const OWN_FRAMES_PER_SEC: u64 = 100;
/// See [`OWN_FRAMES_PER_SEC`].
pub const OWN_FRAMES_BURST: u64 = 32;
/// Those of one interface that wait to be looked at.
pub const OWN_FRAMES_WAITING_MAX: usize = 8;
/// Bytes of such a frame: one with an MTU of 1500.
pub const OWN_FRAME_LEN_MAX: usize = 1514;
/// Answers of one network that wait to be sent.
pub const OWN_ANSWERS_MAX: usize = OWN_FRAMES_WAITING_MAX * PORTS_MAX;
