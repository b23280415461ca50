//! The 12 bytes before a body (spec, "Header").

use weir_limits::VHOST_USER_BODY_MAX;

use crate::error::ProtocolError;
use crate::request::RequestCode;

/// Bytes of a header: request, flags and size, 32 bits each.
pub const HEADER_LEN: usize = 12;
/// The version bits of the flags.
pub const VERSION_MASK: u32 = 0x3;
/// The protocol version.
pub const VERSION: u32 = 0x1;
/// Flag: this is a reply.
pub const REPLY_FLAG: u32 = 0x4;
/// Flag: the sender wants a `REPLY_ACK` status.
pub const NEED_REPLY_FLAG: u32 = 0x8;

/// A message's header. One that was decoded has version 1, no undefined flags and a size of at
/// most [`VHOST_USER_BODY_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    request: RequestCode,
    flags: u32,
    size: u32,
}

impl Header {
    /// A header with version 1 and `flags`, for a body of `body_len` bytes.
    pub fn new(
        request: impl Into<RequestCode>,
        flags: u32,
        body_len: usize,
    ) -> Result<Self, ProtocolError> {
        let request = request.into();
        match u32::try_from(body_len) {
            Ok(size) if body_len <= VHOST_USER_BODY_MAX => {
                Ok(Self { request, flags: VERSION | flags, size })
            }
            _ => Err(ProtocolError::BodyTooLarge { request, size: body_len }),
        }
    }

    /// Reads a header and checks its version, its flags and its size.
    ///
    /// # Errors
    /// [`ProtocolError::Version`], [`ProtocolError::UndefinedFlags`],
    /// [`ProtocolError::BodyTooLarge`].
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Self, ProtocolError> {
        let [r0, r1, r2, r3, f0, f1, f2, f3, s0, s1, s2, s3] = *bytes;
        let request = RequestCode(u32::from_ne_bytes([r0, r1, r2, r3]));
        let flags = u32::from_ne_bytes([f0, f1, f2, f3]);
        let size = u32::from_ne_bytes([s0, s1, s2, s3]);
        if flags & VERSION_MASK != VERSION {
            return Err(ProtocolError::Version { request, found: flags & VERSION_MASK });
        }
        if flags & !(VERSION_MASK | REPLY_FLAG | NEED_REPLY_FLAG) != 0 {
            return Err(ProtocolError::UndefinedFlags { request, flags });
        }
        Self::new(request, flags, usize::try_from(size).unwrap_or(usize::MAX))
    }

    /// The header's bytes.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let [r0, r1, r2, r3] = self.request.0.to_ne_bytes();
        let [f0, f1, f2, f3] = self.flags.to_ne_bytes();
        let [s0, s1, s2, s3] = self.size.to_ne_bytes();
        [r0, r1, r2, r3, f0, f1, f2, f3, s0, s1, s2, s3]
    }

    /// The request, or the one replied to.
    pub fn request(&self) -> RequestCode {
        self.request
    }

    /// Bytes of the body.
    pub fn body_len(&self) -> usize {
        // This never saturates: `new` made it from a `usize`.
        usize::try_from(self.size).unwrap_or(usize::MAX)
    }

    /// True if this is a reply.
    pub fn is_reply(&self) -> bool {
        self.flags & REPLY_FLAG != 0
    }

    /// True if the sender wants a `REPLY_ACK` status. This counts only if `REPLY_ACK` was negotiated.
    pub fn needs_reply(&self) -> bool {
        self.flags & NEED_REPLY_FLAG != 0
    }
}
