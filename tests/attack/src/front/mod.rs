//! A front end that keeps no rule: messages as bytes, rings as memory. Nothing here is shared with weir or with `vif`, so
//! that a mistake in weir's own codec or rings is not made on both sides.

pub mod frame;
pub mod guest;
pub mod link;
pub mod memory;
pub mod ring;

use std::fmt;

use rustix::io::Errno;

/// What came of a strike.
pub type Strike<T = ()> = Result<T, Miss>;

/// Why a strike was not carried out to its end.
#[derive(Debug)]
pub enum Miss {
    /// weir, or the kernel, did not go along: it hung up, or did not answer in time.
    Refused(Errno),
    /// weir did what it must not do.
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

/// It is harm.
pub fn harm<T>(what: impl Into<String>) -> Strike<T> {
    Err(Miss::Harm(what.into()))
}
