//! The API's settings: everything is looked up, read and opened before weir gives up its privileges.

use std::io::{self, Read};
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;

use miette::Diagnostic;
use rustix::net::sockopt::{set_socket_reuseaddr, set_socket_reuseport};
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind as bind_to, listen as listen_on, socket_with,
};
use thiserror::Error;
use weir_config::{ApiConfig, ConfigError, FilePath, ListenAddress};
use weir_limits::CONTROL_TOKEN_LEN_MAX;
use weir_sandbox::IdentityError;

use crate::access::{Access, Token, TokenError};

/// Most connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// The settings of the API, ready for use.
#[derive(Debug)]
pub struct Serving {
    group: Option<u32>,
    access: Access,
    tcp: Option<(TcpListener, Token)>,
}

/// The reason why the API cannot be served as configured.
#[derive(Debug, Error, Diagnostic)]
pub enum ServingError {
    /// There is no such group or user.
    #[error("`{key}` of [switch] cannot be had")]
    #[diagnostic(help("`getent passwd` and `getent group` show those there are"))]
    Account {
        /// `group` or `admin`.
        key: &'static str,
        /// The reason.
        source: IdentityError,
    },
    /// The token's file cannot be read.
    #[error("cannot read the token in {path}")]
    #[diagnostic(help("`openssl rand -hex 32 > {path} && chmod 600 {path}` makes one"))]
    TokenFile {
        /// The file.
        path: FilePath,
        /// The reason.
        source: ConfigError,
    },
    /// The file contains no token.
    #[error("the file {path} has no token")]
    #[diagnostic(help("`openssl rand -hex 32 > {path} && chmod 600 {path}` makes one"))]
    Token {
        /// The file.
        path: FilePath,
        /// The fault.
        source: TokenError,
    },
    /// The address is in use, or is not this host's.
    #[error("cannot listen on {address}")]
    #[diagnostic(help("another program may listen there: choose another `api_listen`"))]
    Listen {
        /// The address.
        address: ListenAddress,
        /// The system's error.
        source: io::Error,
    },
}

impl Default for Serving {
    /// Serves the user of this process, and root.
    fn default() -> Self {
        Self { group: None, access: Access::of_this_user([]), tcp: None }
    }
}

impl Serving {
    /// The settings of this configuration. `beside`: another weir, whose place this one takes, listens as well.
    ///
    /// # Errors
    /// [`ServingError`]
    pub fn of(config: &ApiConfig, beside: bool) -> Result<Self, ServingError> {
        let (group, admins) = accounts(config)?;
        let tcp = match (config.listen, &config.token_file) {
            (Some(address), Some(path)) => Some((listen(address, beside)?, token(path)?)),
            // The configuration's parser accepts neither without the other.
            _ => None,
        };
        let access = Access::of_this_user(admins);
        Ok(Self { group, access, tcp })
    }

    /// A note about a group or user that this host does not have.
    pub fn note(config: &ApiConfig) -> Option<String> {
        let ServingError::Account { key, source } = accounts(config).err()? else { return None };
        Some(format!("`{key}` of [switch]: {source}, and `weir run` takes one"))
    }

    /// The group that may open the control socket.
    #[must_use]
    pub fn group(&self) -> Option<u32> {
        self.group
    }

    #[cfg(test)]
    pub(crate) fn set_access(&mut self, access: Access) {
        self.access = access;
    }

    pub(crate) fn access(&self) -> &Access {
        &self.access
    }

    pub(crate) fn tcp(&self) -> Option<&(TcpListener, Token)> {
        self.tcp.as_ref()
    }
}

/// The group and the users of the configuration, by number.
fn accounts(config: &ApiConfig) -> Result<(Option<u32>, Vec<u32>), ServingError> {
    let account = |key| move |source| ServingError::Account { key, source };
    let group = config.group.as_ref().map(|group| weir_sandbox::group(group.as_str()));
    let group = group.transpose().map_err(account("group"))?;
    let admins = config.admins.as_slice().iter().map(|user| weir_sandbox::user(user.as_str()));
    let admins = admins.collect::<Result<Vec<_>, _>>().map_err(account("admin"))?;
    Ok((group, admins))
}

/// Listens so that the next weir of this user can listen, too, before this one ends. A socket that shares its address
/// with nobody finds whoever else is there.
fn listen(address: ListenAddress, beside: bool) -> Result<TcpListener, ServingError> {
    let bind = |shared| -> io::Result<TcpListener> {
        let of = address.get();
        let family = if of.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        set_socket_reuseaddr(&socket, true)?;
        set_socket_reuseport(&socket, shared)?;
        bind_to(&socket, &of)?;
        listen_on(&socket, BACKLOG)?;
        Ok(socket.into())
    };
    let alone = if beside { Ok(()) } else { bind(false).map(drop) };
    let listener = alone.and_then(|()| bind(true));
    let listener = listener.map_err(|source| ServingError::Listen { address, source })?;
    tracing::warn!(
        %address,
        "the API listens for TCP: whoever knows the token, or sees it on its way, reads everything; nobody writes"
    );
    Ok(listener)
}

fn token(path: &FilePath) -> Result<Token, ServingError> {
    let cannot = |source| ServingError::TokenFile { path: path.clone(), source };
    let unread = |source| cannot(ConfigError::Read { path: path.as_path().into(), source });
    let mut text = String::new();
    // A newline may follow; anything longer is no token.
    let most = CONTROL_TOKEN_LEN_MAX as u64 + 2;
    let file = weir_config::open_file(path.as_path()).map_err(cannot)?;
    if file.metadata().map_err(unread)?.mode() & 0o077 != 0 {
        tracing::warn!(%path, "other users may have a right to the file of the token: chmod 600 {path}");
    }
    file.take(most).read_to_string(&mut text).map_err(unread)?;
    Token::new(&text).map_err(|source| ServingError::Token { path: path.clone(), source })
}
