//! Ethernet addresses.

use std::fmt;
use std::str::FromStr;

/// A 48-bit Ethernet address in the order of the wire.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// `ff:ff:ff:ff:ff:ff`.
    pub const BROADCAST: Mac = Mac([0xff; 6]);

    /// True if the group bit is set: a multicast address, or broadcast.
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// True for `ff:ff:ff:ff:ff:ff`.
    pub const fn is_broadcast(self) -> bool {
        self.to_u64() == Mac::BROADCAST.to_u64()
    }

    /// True for `00:00:00:00:00:00`, which no station may use.
    pub const fn is_zero(self) -> bool {
        self.to_u64() == 0
    }

    /// The address as a number below 2^48; the first byte of the wire is the most significant.
    pub const fn to_u64(self) -> u64 {
        let [a, b, c, d, e, f] = self.0;
        u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, f] = self.0;
        write!(out, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

/// The reason for which a text is not an Ethernet address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MacParseError {
    /// The address does not have six groups.
    #[error(
        "an Ethernet address has 6 groups separated by ':', as in 52:54:00:12:34:56; \"{text}\" has {groups}"
    )]
    Groups {
        /// The whole text.
        text: String,
        /// The number of groups.
        groups: usize,
    },
    /// A group that is not two hexadecimal digits.
    #[error(
        "group {position} of the Ethernet address \"{text}\" is \"{group}\", not two hexadecimal digits"
    )]
    Group {
        /// The whole text.
        text: String,
        /// The number of the group, counted from 1.
        position: usize,
        /// The group.
        group: String,
    },
}

impl FromStr for Mac {
    type Err = MacParseError;

    /// Reads six groups of two hexadecimal digits separated by `:`.
    fn from_str(text: &str) -> Result<Mac, MacParseError> {
        let groups = text.split(':').count();
        if groups != 6 {
            return Err(MacParseError::Groups { text: text.to_owned(), groups });
        }
        let mut mac = Mac::default();
        for (index, (byte, group)) in mac.0.iter_mut().zip(text.split(':')).enumerate() {
            // `from_str_radix` alone would accept "+f".
            let digits = group.len() == 2 && group.bytes().all(|b| b.is_ascii_hexdigit());
            *byte =
                digits.then(|| u8::from_str_radix(group, 16).ok()).flatten().ok_or_else(|| {
                    MacParseError::Group {
                        text: text.to_owned(),
                        position: index + 1,
                        group: group.to_owned(),
                    }
                })?;
        }
        Ok(mac)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUEST: Mac = Mac([0x52, 0x54, 0x00, 0x12, 0x34, 0xab]);

    #[test]
    fn text_round_trips_in_either_case() {
        assert_eq!(GUEST.to_string(), "52:54:00:12:34:ab");
        assert_eq!("52:54:00:12:34:ab".parse(), Ok(GUEST));
        assert_eq!("52:54:00:12:34:AB".parse(), Ok(GUEST));
    }

    #[test]
    fn errors_say_what_is_wrong_and_where() {
        let short = "52:54:00:12:34".parse::<Mac>().unwrap_err();
        assert!(short.to_string().ends_with("\"52:54:00:12:34\" has 5"), "{short}");
        let sign = "52:54:00:+1:34:56".parse::<Mac>().unwrap_err();
        assert!(sign.to_string().starts_with("group 4"), "{sign}");
        for bad in
            ["", "52:54:00:12:34:5", "52:54:00:12:34:5g", "52-54-00-12-34-56", "é2:54:00:12:34:56"]
        {
            assert!(bad.parse::<Mac>().is_err(), "{bad}");
        }
    }

    #[test]
    fn kinds_and_numbers() {
        assert!(Mac::BROADCAST.is_broadcast() && Mac::BROADCAST.is_multicast());
        assert!(Mac([0x33, 0x33, 0, 0, 0, 1]).is_multicast());
        assert!(!GUEST.is_multicast() && !GUEST.is_broadcast() && !GUEST.is_zero());
        assert!(Mac::default().is_zero());
        assert_eq!(GUEST.to_u64(), 0x5254_0012_34ab);
        assert!(Mac([0, 0, 0, 0, 1, 0]) > Mac([0, 0, 0, 0, 0, 0xff]));
    }
}
