//! The rights of callers.
//!
//! A user that can open the socket may read: the file's permissions decide this. Root, the user who started weir, and
//! the configured users may write. Over TCP a token gives the right to read.

use std::collections::BTreeSet;
use std::fmt;

use weir_limits::{
    CONFIG_COST_BYTES_MAX, CONFIG_COST_OF_ADMINS_BYTES_MAX, CONTROL_TOKEN_LEN_MAX,
    CONTROL_TOKEN_LEN_MIN,
};

/// Users who may write.
#[derive(Debug, Clone)]
pub struct Access {
    admins: BTreeSet<u32>,
    /// Users among them who have full control of this process anyway.
    owners: BTreeSet<u32>,
}

impl Access {
    /// Root, the present user of this process, and `admins`.
    #[must_use]
    pub fn of_this_user(admins: impl IntoIterator<Item = u32>) -> Self {
        let own = rustix::process::geteuid().as_raw();
        let owners = BTreeSet::from([0, own]);
        Self { admins: admins.into_iter().chain(owners.iter().copied()).collect(), owners }
    }

    #[cfg(test)]
    pub(crate) fn nobody() -> Self {
        Self { admins: BTreeSet::new(), owners: BTreeSet::new() }
    }

    /// Access by which only these users, and root, may write.
    #[cfg(test)]
    pub(crate) fn admins_only(admins: impl IntoIterator<Item = u32>) -> Self {
        Self { admins: admins.into_iter().collect(), owners: BTreeSet::new() }
    }

    /// True if `caller` may write.
    pub(crate) fn may_write(&self, caller: Caller) -> bool {
        match caller {
            Caller::User(user) => self.admins.contains(&user),
            Caller::Network => false,
        }
    }

    /// The most bytes of memory that reading a configuration of this caller may take.
    pub(crate) fn configuration_cost_max(&self, caller: Caller) -> u64 {
        match caller {
            Caller::User(user) if self.owners.contains(&user) => CONFIG_COST_BYTES_MAX,
            Caller::User(_) | Caller::Network => CONFIG_COST_OF_ADMINS_BYTES_MAX,
        }
    }
}

/// The party at the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Caller {
    /// A user of this machine, by the kernel's word (`SO_PEERCRED`).
    User(u32),
    /// A client over TCP.
    Network,
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(user) => write!(f, "user {user}"),
            Self::Network => f.write_str("a client over TCP"),
        }
    }
}

/// The secret that a client over TCP needs.
#[derive(Clone)]
pub struct Token(String);

/// The reason why a text is no token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a token has {CONTROL_TOKEN_LEN_MIN} to {CONTROL_TOKEN_LEN_MAX} printable characters, without spaces; this one does not"
)]
pub struct TokenError;

impl Token {
    /// The token in a file with this text; spaces and newlines around it do not count.
    ///
    /// # Errors
    /// [`TokenError`]
    pub fn new(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        let length = CONTROL_TOKEN_LEN_MIN..=CONTROL_TOKEN_LEN_MAX;
        match length.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(Self(text.into())),
            false => Err(TokenError),
        }
    }

    /// True if the value of an `Authorization` header contains it. The comparison takes as long for a nearly right
    /// token as for any other of its length.
    pub(crate) fn is_in(&self, authorization: Option<&[u8]>) -> bool {
        let given = authorization.and_then(|value| value.strip_prefix(b"Bearer "));
        given.is_some_and(|given| {
            let pairs = given.iter().zip(self.0.as_bytes());
            given.len() == self.0.len() && pairs.fold(0, |found, (a, b)| found | (a ^ b)) == 0
        })
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_the_own_user_and_those_who_are_named_may_write_and_nobody_over_tcp() {
        let access = Access::of_this_user([7]);
        let own = rustix::process::geteuid().as_raw();
        for user in [0, own, 7] {
            assert!(access.may_write(Caller::User(user)), "{user}");
        }
        assert!(!access.may_write(Caller::User(8)) && !access.may_write(Caller::Network));
    }

    #[test]
    fn a_token_is_taken_whole_or_not_at_all() {
        let token = Token::new("  0123456789abcdef\n").unwrap();
        assert!(token.is_in(Some(b"Bearer 0123456789abcdef")));
        let wrong: [&[u8]; 6] = [
            b"Bearer 0123456789abcdeg",
            b"Bearer 0123456789abcdef0",
            b"Bearer 0123456789abcde",
            b"Bearer ",
            b"Basic 0123456789abcdef",
            b"0123456789abcdef",
        ];
        for value in wrong {
            assert!(!token.is_in(Some(value)), "{}", String::from_utf8_lossy(value));
        }
        assert!(!token.is_in(None));
        let refused = ["", "short", "with a space in it", "0123456789abcd\u{7}f"];
        assert!(refused.iter().all(|text| Token::new(text).is_err()));
        assert!(Token::new(&"x".repeat(CONTROL_TOKEN_LEN_MAX + 1)).is_err());
        assert!(!format!("{token:?}").contains("0123"), "a token is not printed");
    }
}
