//! `weir libvirt`: the interfaces of a libvirt domain, whose settings are in its `<metadata>`.

#![forbid(unsafe_code)]

mod define;
pub mod domain;

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use miette::Diagnostic;
use thiserror::Error;
use weir_api::{Client, ClientError};
use weir_config::{ConfigError, Defaults, Owner, PortName, SocketPath, VifConfig};
use weir_limits as limits;
use weir_switch::control::{VifOrigin, VifStatus};
use weir_text::plain::plain_short;

use crate::define::{Account, refuse_closed};
use crate::domain::Domain;
pub use crate::domain::{DomainError, NAMESPACE};

const TIMEOUT: Duration = Duration::from_secs(limits::LIBVIRT_HOOK_TIMEOUT_SECS);
const PATIENCE: Duration = Duration::from_secs(limits::LIBVIRT_HOOK_PATIENCE_SECS);

/// The reason why a domain cannot start, or cannot be defined.
#[derive(Debug, Error, Diagnostic)]
pub enum LibvirtError {
    /// Standard input cannot be read.
    #[error("cannot read the domain from standard input: {0}")]
    Read(#[from] io::Error),
    /// The domain's XML cannot be used.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Domain(#[from] DomainError),
    /// The settings of an interface are wrong.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Config(#[from] ConfigError),
    /// The running weir cannot be reached, or refuses.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Client(#[from] ClientError),
    /// A word on the command line is not a setting.
    #[error("{0}")]
    Setting(String),
    /// libvirt refuses.
    #[error("libvirt says: {0}")]
    #[diagnostic(help("`virsh list --all` shows its domains; --connect names another libvirt"))]
    Virsh(String),
    /// The hook is not installed.
    #[error("libvirt has no hook that makes the domain's interfaces")]
    #[diagnostic(help("`weir libvirt install` makes it"))]
    NoHook,
    /// The hook cannot be written.
    #[error("cannot write the hook: {0}")]
    #[diagnostic(help("run the command as root"))]
    Install(io::Error),
    /// The hook did not end in time.
    #[error("nothing is done within {} s", limits::LIBVIRT_HOOK_TIMEOUT_SECS)]
    #[diagnostic(help("`weir doctor` looks why weir does not answer"))]
    Late,
}

/// An operation of libvirt to which weir reacts.
///
/// `migrate` and `restore` are not among them: `prepare` follows on the host where the domain arrives. If it does not
/// follow, no interface was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Prepare,
    Reconnect,
    Release,
}

impl Operation {
    fn of(args: &HookArgs) -> Option<Self> {
        match args.operation.to_str()? {
            "prepare" => Some(Self::Prepare),
            "reconnect" => Some(Self::Reconnect),
            "release" => Some(Self::Release),
            _ => None,
        }
    }
}

/// `weir libvirt`
///
/// # Errors
/// [`LibvirtError`], which stops the start of a domain.
pub fn run(
    command: LibvirtCommand,
    defaults: &Defaults,
    out: &mut dyn Write,
) -> Result<(), LibvirtError> {
    match command {
        LibvirtCommand::Hook(args) => hook(&args, defaults),
        LibvirtCommand::Install => define::install(defaults, out).map_err(LibvirtError::Install),
        LibvirtCommand::Define(args) => define::define(&args, defaults, out),
        LibvirtCommand::Undefine(args) => define::undefine(&args, out),
        LibvirtCommand::Check(virsh) => define::check(&virsh, defaults, out),
    }
}

/// Runs the hook within a time limit, because libvirt waits for it.
fn hook(args: &HookArgs, defaults: &Defaults) -> Result<(), LibvirtError> {
    let Some(operation) = Operation::of(args) else { return Ok(()) };
    let control = defaults.control.clone();
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(perform(operation, &control)));
    match (told.recv_timeout(TIMEOUT).unwrap_or(Err(LibvirtError::Late)), operation) {
        // libvirt would end the running domain if its hook failed here.
        (Err(error), Operation::Reconnect) => {
            eprintln!("weir: {}", sentence(&error));
            Ok(())
        }
        (result, _) => result,
    }
}

fn perform(operation: Operation, control: &SocketPath) -> Result<(), LibvirtError> {
    let xml = read(&mut io::stdin().lock())?;
    let is_weirs = xml.contains(NAMESPACE);
    match operation {
        Operation::Prepare if is_weirs => prepare(&Domain::read(&xml)?, control),
        Operation::Reconnect if is_weirs => reconnect(&Domain::read(&xml)?, control),
        // weir's elements may have been removed while the domain ran.
        Operation::Release if is_weirs || xml.contains(domain::VHOST_USER) => release(
            &domain::owner(&xml)?,
            control,
            if is_weirs { PATIENCE } else { Duration::ZERO },
        ),
        _ => Ok(()),
    }
}

fn read(from: &mut dyn Read) -> Result<String, LibvirtError> {
    let max = limits::DOMAIN_XML_BYTES_MAX;
    let mut bytes = Vec::new();
    from.take(max as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > max {
        return Err(DomainError::TooLong.into());
    }
    text_of(bytes)
}

fn text_of(bytes: Vec<u8>) -> Result<String, LibvirtError> {
    Ok(String::from_utf8(bytes).map_err(|_| DomainError::NotXml("it is not UTF-8".into()))?)
}

/// Makes all interfaces of a domain that starts. Interfaces that it already has are left over from an earlier run.
fn prepare(domain: &Domain, control: &SocketPath) -> Result<(), LibvirtError> {
    let wanted = domain.vifs(control)?;
    ask(control, PATIENCE, |client| {
        remove_all(client, &domain.owner)?;
        refuse_taken(&wanted, &client.vifs()?, &domain.owner)?;
        for vif in &wanted {
            client.put_vif(vif)?;
        }
        if let Some(account) = Account::of_qemu(domain.has_own_account)
            && let Err(closed) = refuse_closed(&wanted, &account, None).map_err(DomainError::from)
        {
            remove_all(client, &domain.owner)?;
            return Err(closed.into());
        }
        Ok(())
    })
}

/// Refuses an interface whose name or socket belongs to an interface that is not `owner`'s.
fn refuse_taken(
    wanted: &[VifConfig],
    running: &[VifStatus],
    owner: &Owner,
) -> Result<(), DomainError> {
    let mut others = running.iter().filter(|it| it.config.by.as_ref() != Some(owner));
    let is_wanted = |it: &&VifStatus| {
        let VifConfig { name, socket, .. } = &it.config;
        wanted.iter().any(|own| own.name == *name || own.socket == *socket)
    };
    let Some(taken) = others.find(is_wanted) else { return Ok(()) };
    let whose = match (&taken.config.by, taken.origin) {
        (Some(by), _) => format!("{by} keeps it"),
        (None, VifOrigin::File) => "it stands in weir's configuration".to_owned(),
        (None, VifOrigin::Xen) => "it is a Xen guest's".to_owned(),
        (None, VifOrigin::Command) => "a command made it".to_owned(),
    };
    Err(DomainError::Taken { name: taken.config.name.to_string(), whose })
}

/// Makes missing interfaces. The others stay as they are, because `weir vif set` may have changed them.
fn reconnect(domain: &Domain, control: &SocketPath) -> Result<(), LibvirtError> {
    let wanted = domain.vifs(control)?;
    ask(control, PATIENCE, |client| {
        let there: Vec<_> = client.vifs()?.into_iter().map(|vif| vif.config.name).collect();
        for vif in wanted.iter().filter(|vif| !there.contains(&vif.name)) {
            client.put_vif(vif)?;
        }
        Ok(())
    })
}

fn release(owner: &Owner, control: &SocketPath, patience: Duration) -> Result<(), LibvirtError> {
    match ask(control, patience, |client| remove_all(client, owner)) {
        Err(LibvirtError::Client(ClientError::NotRunning { .. })) => Ok(()),
        result => result,
    }
}

fn remove_all(client: &mut Client, owner: &Owner) -> Result<(), LibvirtError> {
    let owned = client.vifs()?.into_iter().filter(|vif| vif.config.by.as_ref() == Some(owner));
    let names: Vec<PortName> = owned.map(|vif| vif.config.name).collect();
    for name in &names {
        client.remove_vif(name, true)?;
    }
    Ok(())
}

/// Asks weir, and asks again if weir is killed, restarted or upgraded before or meanwhile. `act` may run several times.
fn ask<T>(
    control: &SocketPath,
    patience: Duration,
    act: impl Fn(&mut Client) -> Result<T, LibvirtError>,
) -> Result<T, LibvirtError> {
    use ClientError::{Later, NoAnswer, NotRunning};
    let end = Instant::now() + patience;
    loop {
        let asked = Client::connect(control.as_path()).map_err(LibvirtError::from);
        match asked.and_then(|mut client| act(&mut client)) {
            Err(LibvirtError::Client(NotRunning { .. } | NoAnswer { .. } | Later { .. }))
                if Instant::now() < end =>
            {
                thread::sleep(Duration::from_millis(50));
            }
            result => return result,
        }
    }
}

/// The error and its remedy on one line. Of several problems only the first is named.
pub fn sentence(error: &dyn Diagnostic) -> String {
    if let Some(first) = error.related().and_then(|mut all| all.next()) {
        return sentence(first);
    }
    let mut parts = vec![error.to_string()];
    parts.extend(error.labels().into_iter().flatten().filter_map(|it| it.label().map(Into::into)));
    parts.extend(error.help().map(|help| help.to_string()));
    let parts: Vec<_> = parts.iter().map(|part| plain_short(part)).collect();
    parts.join(": ")
}

#[cfg(test)]
mod tests;

/// `weir libvirt`
#[derive(Debug, Subcommand)]
pub enum LibvirtCommand {
    /// Make or remove a domain's interfaces, as libvirt's hook for QEMU; the domain's XML is read from standard input
    #[command(after_help = LIBVIRT_HOOK_NOTES)]
    Hook(HookArgs),
    /// Have libvirt call that hook, from the next start of a domain on
    Install,
    /// Give a domain an interface, or its interface other settings, from its next start on
    #[command(after_help = LIBVIRT_DEFINE_EXAMPLES)]
    Define(DefineArgs),
    /// Take an interface out of a domain, from its next start on
    Undefine(UndefineArgs),
    /// Say whether a domain would get its interfaces, and what is wrong if not
    Check(Virsh),
}

/// A domain, and the libvirt that has it.
#[derive(Debug, Args)]
pub struct Virsh {
    /// The domain
    #[arg(value_name = "DOMAIN")]
    pub domain: String,
    /// The libvirt that has it
    #[arg(long, value_name = "URI", default_value = "qemu:///system")]
    pub connect: String,
}

/// `weir libvirt define`
#[derive(Debug, Args)]
pub struct DefineArgs {
    /// The domain.
    #[command(flatten)]
    pub virsh: Virsh,
    /// The interface
    pub name: PortName,
    /// Its settings, as in `weir vif add`; they replace all earlier ones
    #[arg(value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
}

/// `weir libvirt undefine`
#[derive(Debug, Args)]
pub struct UndefineArgs {
    /// The domain.
    #[command(flatten)]
    pub virsh: Virsh,
    /// The interface
    pub name: PortName,
}

const LIBVIRT_DEFINE_EXAMPLES: &str = "\
Examples:
  weir libvirt define web0 web0 vlan=10 rate=1Gbit
  weir libvirt define router lan trunk=[10,20] --connect qemu:///session

The domain gets shared memory, an <interface type='vhostuser'> on the socket NAME.sock, and a <vif> \
in its <metadata>. An <interface> that is there already keeps all that the settings do not name.";

/// `weir libvirt hook`
#[derive(Debug, Args)]
pub struct HookArgs {
    /// The domain
    #[arg(allow_hyphen_values = true)]
    pub domain: OsString,
    /// What happens to it
    #[arg(allow_hyphen_values = true)]
    pub operation: OsString,
    /// What else libvirt says
    #[arg(allow_hyphen_values = true, trailing_var_arg = true)]
    pub rest: Vec<OsString>,
}

const LIBVIRT_HOOK_NOTES: &str = "\
Operations:
  prepare    makes the interfaces that the domain's <metadata> names
  reconnect  makes those that are missing; never fails, since libvirt would end the domain
  release    removes all interfaces of the domain
Any other does nothing, and neither does a domain without weir's elements.

/etc/libvirt/hooks/qemu.d/weir calls it, which `weir libvirt install` writes. The guide (libvirt.md) has the elements.";
