//! A front end that follows no rule: messages as bytes, rings as memory. It shares no code with weir or `vif`, so
//! that a mistake in weir's codec or rings is not made on both sides.

pub mod ear;
pub mod frame;
pub mod guest;
pub mod link;
pub mod memory;
pub mod ring;

use std::fmt;

use rustix::io::Errno;

/// The result of an attempt.
pub type Strike<T = ()> = Result<T, Miss>;

/// The reason why an attempt was not completed.
#[derive(Debug)]
pub enum Miss {
    /// weir or the kernel refused: it disconnected or did not answer in time.
    Refused(Errno),
    /// weir did something that it must not do.
    Harm(String),
}

impl fmt::Display for Miss {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(errno) => write!(out, "{errno}"),
            Self::Harm(what) => out.write_str(what),
        }
    }
}

impl From<Errno> for Miss {
    fn from(errno: Errno) -> Self {
        Self::Refused(errno)
    }
}

impl From<std::io::Error> for Miss {
    fn from(error: std::io::Error) -> Self {
        Self::Refused(Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }
}

/// The result of an attack that has done harm.
pub fn harm<T>(what: impl Into<String>) -> Strike<T> {
    Err(Miss::Harm(what.into()))
}
