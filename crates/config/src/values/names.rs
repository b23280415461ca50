//! Names and paths, and the uplinks of a bond by their names.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use weir_limits as limits;
use weir_limits::BOND_UPLINKS_MAX;
use weir_text::plain::{is_unprintable, plain_short};

use super::{ValueError, schema_as, serde_as_text};

/// Defines a type for text that was checked when it was made: by its `FromStr`, or by this rule, with this error.
macro_rules! text {
    ($(#[$doc:meta])* $name:ident: $rule:ident, $error:ident) => {
        text! { $(#[$doc])* $name }

        impl FromStr for $name {
            type Err = ValueError;
            fn from_str(text: &str) -> Result<Self, ValueError> {
                let refused = || ValueError::$error { value: text.into() };
                $rule(text).then(|| Self(text.into())).ok_or_else(refused)
            }
        }
    };
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        serde_as_text!($name);
    };
}

text! {
    /// The name of a port (a VIF or an uplink): 1 to 32 characters out of `a-z0-9-_.`, beginning with a
    /// letter or a digit. It is safe as a file name, in a shell and in a VM monitor's options.
    PortName: is_port_name, PortName
}

fn is_port_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    text.len() <= limits::PORT_NAME_LEN_MAX
        && text.bytes().next().is_some_and(plain)
        && text.bytes().all(|byte| plain(byte) || b"-_.".contains(&byte))
}

text! {
    /// The name of a network. The rules are those of a port's name.
    NetworkName: is_port_name, NetworkName
}

text! {
    /// The name of a security group, in the form of a port's name.
    SecurityGroup: is_port_name, SecurityGroup
}

text! {
    /// The name of a template, in the form of a port's name.
    TemplateName: is_port_name, TemplateName
}

text! {
    /// Names of ports: a port's name in which one `*` stands for any characters.
    NamePattern
}

impl NamePattern {
    /// True if the text, which may be no name of a port, is one of them.
    pub fn matches(&self, name: &str) -> bool {
        let (before, after) = self.0.split_once('*').unwrap_or((&self.0, ""));
        name.len() >= before.len() + after.len()
            && name.starts_with(before)
            && name.ends_with(after)
    }

    /// The name of a port in this text, which somebody else has chosen.
    ///
    /// # Errors
    /// It is no name of a port. The error can be shown.
    pub fn name(&self, text: &str) -> Result<PortName, ValueError> {
        text.parse().map_err(|_| ValueError::PortName { value: plain_short(text) })
    }

    /// The owner of their interfaces.
    pub fn owner(&self) -> Owner {
        Owner(format!("{}{self}", Owner::ON_DEMAND))
    }
}

impl FromStr for NamePattern {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let refused = || ValueError::NamePattern { value: text.into() };
        let (before, after) = text.split_once('*').ok_or_else(refused)?;
        // With some character in place of the `*` it is a name.
        let is_name = is_port_name(&format!("{before}0{after}"));
        is_name.then(|| Self(text.into())).ok_or_else(refused)
    }
}

/// The address of a host in the underlay. A single host can have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostAddress(IpAddr);

impl HostAddress {
    /// The address.
    pub const fn get(self) -> IpAddr {
        self.0
    }
}

impl FromStr for HostAddress {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let is_hosts = |ip: &IpAddr| {
            let everybody = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
            // A link-local IPv6 address means nothing without an interface.
            let link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
            !ip.is_multicast() && !ip.is_unspecified() && !everybody && !link_local
        };
        let ip = text.parse().ok().filter(is_hosts);
        ip.map(Self).ok_or_else(|| ValueError::HostAddress { value: text.into() })
    }
}

impl fmt::Display for HostAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

serde_as_text!(HostAddress);

text! {
    /// A user of this machine, by name or by number: at most 32 printable characters without `:` and `/`.
    UserName: is_account, UserName
}

text! {
    /// A group of this machine, by name or by number. The rules are those of a user's name.
    GroupName: is_account, GroupName
}

/// True if a user or a group can have this name.
fn is_account(text: &str) -> bool {
    (1..=limits::USER_NAME_LEN_MAX).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_graphic() && !b":/".contains(&byte))
}

text! {
    /// The absolute path of a file: text without control characters.
    FilePath: is_file_path, FilePath
}

impl FilePath {
    /// The path.
    pub fn as_path(&self) -> &Path {
        Path::new(&self.0)
    }
}

fn is_file_path(text: &str) -> bool {
    text.starts_with('/') && !text.chars().any(is_unprintable)
}

text! {
    /// The name of a network interface of the host, as Linux's `dev_valid_name` accepts it and without
    /// `%`, which asks the kernel to choose a number.
    InterfaceName: is_interface_name, InterfaceName
}

fn is_interface_name(text: &str) -> bool {
    (1..=limits::IFNAME_LEN_MAX).contains(&text.len())
        && text != "."
        && text != ".."
        && text.chars().all(|c| !c.is_whitespace() && !is_unprintable(c) && !"/:%".contains(c))
}

text! {
    /// The absolute path of a Unix socket, at most 107 bytes if somebody listens on it by this path, else 255. It is text
    /// without quotes and control characters, since it is passed on in a VM monitor's options.
    SocketPath
}

impl SocketPath {
    /// The path.
    pub fn as_path(&self) -> &Path {
        Path::new(&self.0)
    }

    /// A path to listen on.
    ///
    /// # Errors
    /// Those of a path to connect to, or the path is longer than the kernel takes.
    pub fn to_listen(path: &Path) -> Result<Self, ValueError> {
        let path = Self::try_from(path)?;
        path.check_to_listen()?;
        Ok(path)
    }

    /// # Errors
    /// The path is longer than the kernel takes to listen on.
    pub fn check_to_listen(&self) -> Result<(), ValueError> {
        check_length(&self.0, limits::SOCKET_PATH_LEN_MAX)
    }
}

impl FromStr for SocketPath {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        if !text.starts_with('/') {
            return Err(ValueError::SocketPathRelative { value: text.into() });
        }
        check_length(text, limits::DIALED_PATH_LEN_MAX)?;
        if text.chars().any(|c| is_unprintable(c) || c == '"' || c == '\'') {
            return Err(ValueError::SocketPathText);
        }
        Ok(Self(text.into()))
    }
}

impl TryFrom<&Path> for SocketPath {
    type Error = ValueError;
    fn try_from(path: &Path) -> Result<Self, ValueError> {
        path.to_str().ok_or(ValueError::SocketPathText)?.parse()
    }
}

fn check_length(text: &str, max: usize) -> Result<(), ValueError> {
    if text.len() > max {
        return Err(ValueError::SocketPathTooLong { len: text.len(), max });
    }
    Ok(())
}

impl From<&SocketPath> for PathBuf {
    fn from(path: &SocketPath) -> PathBuf {
        PathBuf::from(&path.0)
    }
}

text! {
    /// The name of a channel, as in `channel=['name=...']` of a Xen guest's configuration.
    ChannelName
}

impl ChannelName {
    pub(crate) const EXPECTED: &str =
        "the name of a channel in quotes, without spaces, such as \"weir.agent\"";
}

impl FromStr for ChannelName {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        if !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic() && c != ',') {
            return Ok(Self(text.into()));
        }
        Err(ValueError::WrongType { expected: Self::EXPECTED, found: "a string that is none" })
    }
}

text! {
    /// The owner of an interface that no file describes: 1 to 128 printable ASCII characters, without spaces and `"`.
    Owner
}

impl Owner {
    /// The prefix of the pattern that keeps an interface on demand.
    const ON_DEMAND: &str = "on-demand:";

    /// True if a pattern keeps the interface.
    pub fn is_on_demand(&self) -> bool {
        self.0.starts_with(Self::ON_DEMAND)
    }

    pub(crate) const EXPECTED: &str =
        "who keeps the interface, in quotes and without spaces, such as \"libvirt:UUID\"";
}

impl FromStr for Owner {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"');
        if (1..=limits::OWNER_LEN_MAX).contains(&text.len()) && is_plain {
            return Ok(Self(text.into()));
        }
        Err(ValueError::WrongType { expected: Self::EXPECTED, found: "a string that is none" })
    }
}

/// The permissions of a socket file, as in `chmod`; at most `0777`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SocketMode(u32);

impl SocketMode {
    /// The mode for the owner only.
    pub const OWNER: Self = Self(0o600);

    /// The mode of a control socket: for its owner, and for its group if `for_group`.
    #[must_use]
    pub const fn of_control(for_group: bool) -> Self {
        if for_group { Self(0o660) } else { Self::OWNER }
    }

    /// The mode bits.
    pub const fn bits(self) -> u32 {
        self.0
    }
}

impl FromStr for SocketMode {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let octal = !text.is_empty() && text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
        match u32::from_str_radix(text, 8) {
            Ok(bits) if octal && bits <= 0o777 => Ok(Self(bits)),
            _ => Err(ValueError::SocketMode { value: text.into() }),
        }
    }
}

impl fmt::Display for SocketMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

serde_as_text!(SocketMode);

/// The uplinks of a bond, the preferred one first: 2 to [`BOND_UPLINKS_MAX`], each once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<PortName>", into = "Vec<PortName>")]
pub struct BondUplinks(Vec<PortName>);

schema_as!(BondUplinks, Vec<String>);

impl BondUplinks {
    /// The names of the uplinks.
    pub fn as_slice(&self) -> &[PortName] {
        &self.0
    }
}

impl TryFrom<Vec<PortName>> for BondUplinks {
    type Error = ValueError;
    fn try_from(uplinks: Vec<PortName>) -> Result<Self, ValueError> {
        let different = uplinks.iter().collect::<BTreeSet<_>>().len();
        if different < uplinks.len() || !(2..=BOND_UPLINKS_MAX).contains(&different) {
            let (max, value) = (BOND_UPLINKS_MAX as u64, format!("{different} different uplinks"));
            return Err(ValueError::OutOfRange { min: 2, max, value });
        }
        Ok(Self(uplinks))
    }
}

impl From<BondUplinks> for Vec<PortName> {
    fn from(BondUplinks(uplinks): BondUplinks) -> Self {
        uplinks
    }
}

impl FromStr for BondUplinks {
    type Err = ValueError;
    /// Reads names with commas between them.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let uplinks = text.split(',').map(|name| name.trim().parse());
        uplinks.collect::<Result<Vec<_>, _>>()?.try_into()
    }
}

impl fmt::Display for BondUplinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.0.iter().map(PortName::as_str).collect();
        f.write_str(&names.join(","))
    }
}
