//! Chunks of SCTP (RFC 9260 §3.2).

use crate::packet::{Unread, View};

/// Bytes before the first chunk.
const HEADER_LEN: usize = 12;
/// Bytes of a chunk before its value.
const CHUNK_LEN: usize = 4;

/// The chunks of a packet that count, by their types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunks {
    /// The packet's verification tag.
    pub tag: u32,
    /// The tag that INIT or INIT ACK asks for.
    pub init_tag: u32,
    /// Bit n: a chunk of type n, up to 14.
    types: u16,
    /// The bit T of ABORT or SHUTDOWN COMPLETE: the tag is that of the other direction.
    pub is_reflected: bool,
}

impl Chunks {
    pub const DATA: u8 = 0;
    pub const INIT: u8 = 1;
    pub const INIT_ACK: u8 = 2;
    pub const ABORT: u8 = 6;
    pub const SHUTDOWN: u8 = 7;
    pub const SHUTDOWN_ACK: u8 = 8;
    pub const COOKIE_ECHO: u8 = 10;
    pub const COOKIE_ACK: u8 = 11;
    pub const SHUTDOWN_COMPLETE: u8 = 14;

    /// Reads the chunks of a packet whose header is at `at`, as far as the front has them. The chunks that matter come
    /// before DATA (RFC 9260 §6.10).
    pub fn read(view: View<'_>, at: usize) -> Result<Self, Unread> {
        let header: [u8; HEADER_LEN] = view.array(at)?;
        let [_, _, _, _, t0, t1, t2, t3, ..] = header;
        let tag = u32::from_be_bytes([t0, t1, t2, t3]);
        let mut all = Self { tag, init_tag: 0, types: 0, is_reflected: false };
        let mut here = at + HEADER_LEN;
        loop {
            let [kind, flags, len0, len1] = match view.array::<CHUNK_LEN>(here) {
                Ok(chunk) => chunk,
                Err(_) if here > at + HEADER_LEN => return Ok(all),
                Err(unread) => return Err(unread),
            };
            let len = usize::from(u16::from_be_bytes([len0, len1]));
            let is_first = here == at + HEADER_LEN;
            // INIT, INIT ACK and SHUTDOWN COMPLETE come without any other chunk (§6.10), and a
            // cookie comes first (§5.1).
            let is_alone = matches!(kind, Self::INIT | Self::INIT_ACK | Self::SHUTDOWN_COMPLETE);
            let leads = is_alone || matches!(kind, Self::COOKIE_ECHO | Self::COOKIE_ACK);
            if len < CHUNK_LEN || leads && !is_first {
                return Err(Unread::Malformed);
            }
            if kind <= Self::SHUTDOWN_COMPLETE {
                all.types |= 1 << kind;
            }
            match kind {
                Self::INIT | Self::INIT_ACK => {
                    all.init_tag = u32::from_be_bytes(view.array(here + CHUNK_LEN)?);
                    // INIT has the tag 0 (§8.5.1), and no end asks for that tag (§3.3.2).
                    if all.init_tag == 0 || (kind == Self::INIT) != (tag == 0) {
                        return Err(Unread::Malformed);
                    }
                }
                Self::ABORT | Self::SHUTDOWN_COMPLETE => all.is_reflected = flags & 1 != 0,
                Self::DATA => return Ok(all),
                _ => {}
            }
            here += len.next_multiple_of(CHUNK_LEN);
            if is_alone && view.array::<1>(here) != Err(Unread::Malformed) {
                return Err(Unread::Malformed);
            }
        }
    }

    pub fn has(self, kind: u8) -> bool {
        self.types >> kind & 1 != 0
    }
}
