//! The parts of a domain's XML that concern weir: interfaces with `type="vhostuser"`, and weir's elements in
//! `<metadata>`.
//!
//! Each attribute of `<vif>` except `ALIAS` and `NAME` is a key of `[vif]`, with its value as `weir vif add` takes
//! it. `<filter>` elements are rules, as `weir filter set` takes them, and `<groups>` names security groups.

use std::str::FromStr;

use miette::Diagnostic;
use roxmltree::{Document, Node, ParsingOptions};
use thiserror::Error;
use weir_config::{
    FilterRule, Owner, PortName, Setting, SocketPath, SocketRole, ValueError, VifConfig,
};
use weir_doctor::Closed;
use weir_limits as limits;
use weir_text::plain::plain_short;

use crate::define::Shut;
use crate::{LibvirtError, PATIENCE, ask};

/// The namespace of weir's elements in a domain.
pub const NAMESPACE: &str = "urn:weir:libvirt";
/// The type of interfaces that weir can serve.
pub(super) const VHOST_USER: &str = "vhostuser";

const VIFS: &str = "vifs";
const VIF: &str = "vif";
const FILTER: &str = "filter";
const GROUPS: &str = "groups";
const ALIAS: &str = "alias";
const NAME: &str = "name";
/// The socket's permissions if nothing says otherwise: the user of libvirt's QEMU has to be in the group of weir's
/// sockets.
const SOCKET_MODE: &str = "0660";

/// The reason why a domain cannot be used.
#[derive(Debug, Error, Diagnostic)]
pub enum DomainError {
    /// The XML is larger than libvirt accepts.
    #[error("the XML of the domain is larger than {} bytes", limits::DOMAIN_XML_BYTES_MAX)]
    TooLong,
    /// The XML cannot be parsed.
    #[error("the XML of the domain cannot be read: {0}")]
    NotXml(String),
    /// The domain has no UUID.
    #[error("the domain has no <uuid>")]
    NoUuid,
    /// weir's namespace has an unknown element.
    #[error("weir knows no element <{0}> here")]
    #[diagnostic(help("write <vif .../> elements in one <vifs xmlns=\"{}\">", NAMESPACE))]
    Element(String),
    /// The domain has two `<vifs>` elements.
    #[error("the domain has <vifs> twice")]
    #[diagnostic(help("libvirt keeps one element of a namespace: put each <vif .../> into one"))]
    Twice,
    /// The domain has too many interfaces.
    #[error("the domain has more than {} interfaces", limits::DOMAIN_VIFS_MAX)]
    Many,
    /// An element belongs to no interface of the domain.
    #[error("the domain has no interface of type=\"vhostuser\" for its <vif> {0}")]
    #[diagnostic(help(
        "give it an <interface type=\"vhostuser\"> with <source type=\"unix\" path=... mode=\"client\"/>, or the \
         <vif> a `socket` for an interface that is attached later"
    ))]
    NoInterface(String),
    /// Two elements belong to the same interface.
    #[error("two <vif> elements of the domain are for one interface, {0}")]
    #[diagnostic(help("name each interface by its `alias`, `mac` or `socket`"))]
    Same(String),
    /// The element names an owner.
    #[error("`by` of <vif> {0} cannot be chosen")]
    #[diagnostic(help("leave it out: the interface is kept by the domain"))]
    By(String),
    /// A text is not a filter rule.
    #[error("{text} is no filter rule: {error}")]
    #[diagnostic(help("write DIRECTION ACTION EXPRESSION into <filter>, such as tx drop port 25"))]
    Rule {
        /// The text.
        text: String,
        /// The reason.
        error: ValueError,
    },
    /// The domain has no element of weir's.
    #[error("the domain has no <vif> of weir's")]
    #[diagnostic(help("`weir libvirt define DOMAIN NAME` writes one"))]
    NoElements,
    /// weir cannot map the domain's memory.
    #[error("the domain's memory is not shared")]
    #[diagnostic(help(
        "put <source type='memfd'/> and <access mode='shared'/> into its <memoryBacking>"
    ))]
    Private,
    /// QEMU would end when the guest uses the device.
    #[error(
        "QEMU {version} ends with interrupt vectors where it emulates the processor, and {name} has them"
    )]
    #[diagnostic(help(
        "`weir libvirt define DOMAIN {name}`, with its settings, takes them away; QEMU 10 and KVM have no such fault"
    ))]
    Vectors {
        /// The interface.
        name: String,
        /// The domain's QEMU.
        version: String,
    },
    /// weir would not be told that translations end.
    #[error("the domain has a virtual IOMMU, and {name} is behind it without {missing}")]
    #[diagnostic(help(
        "<iommu> needs <driver iotlb='on'/>, and the <driver> of the interface iommu='on' ats='on'"
    ))]
    Translations {
        /// The interface.
        name: String,
        /// The attribute.
        missing: &'static str,
    },
    /// An interface of this name, or with this socket, exists and is not the domain's.
    #[error("an interface called {name} exists already, and is not the domain's: {whose}")]
    #[diagnostic(help(
        "give the domain's interface another name and socket; `weir libvirt undefine DOMAIN NAME` takes it out"
    ))]
    Taken {
        /// The name of the interface that exists.
        name: String,
        /// The origin of the interface that exists.
        whose: String,
    },
    /// The user of libvirt's QEMU may not open an interface's socket.
    #[error("libvirt's QEMU cannot connect to {name}: {closed}, and QEMU runs as user {user}")]
    #[diagnostic(help("{mend}"))]
    Closed {
        /// The interface.
        name: String,
        /// The obstacle.
        closed: Closed,
        /// QEMU's user.
        user: u32,
        /// The remedy.
        mend: String,
    },
    /// The domain has no element for an interface of this name.
    #[error("the domain has no <vif> {0}")]
    #[diagnostic(help("`weir libvirt check DOMAIN` shows those that it has"))]
    NotThere(String),
    /// An element names its groups in two places.
    #[error("the <vif> {0} has its groups twice")]
    #[diagnostic(help("name them once, with commas: <groups>web, ssh</groups>"))]
    Groups(String),
    /// An element has too many filter rules.
    #[error("the <vif> {0} has more than {max} filter rules", max = limits::FILTER_RULES_MAX)]
    Rules(String),
    /// A text is not an interface's name.
    #[error("{text} is no name for an interface: {error}")]
    #[diagnostic(help(
        "give the <vif> a `name` of 1 to 32 characters out of a-z, 0-9, -, _ and ."
    ))]
    Name {
        /// The text.
        text: String,
        /// The reason.
        error: ValueError,
    },
}

impl From<Shut> for DomainError {
    fn from(Shut { name, closed, user }: Shut) -> Self {
        Self::Closed {
            name,
            mend: closed.mend("leave `socket_mode` of the <vif> out"),
            closed,
            user,
        }
    }
}

/// The parts of a domain that concern weir.
#[derive(Debug)]
pub(super) struct Domain {
    pub(super) owner: Owner,
    /// True if the domain's QEMU may run as its own user.
    pub(super) has_own_account: bool,
    elements: Vec<Element>,
    interfaces: Vec<Interface>,
}

/// A `<vif>` element of weir's.
#[derive(Debug, Default)]
struct Element {
    alias: Option<String>,
    name: Option<String>,
    /// Keys of `[vif]` with their values.
    keys: Vec<(String, String)>,
    filter: Vec<FilterRule>,
}

/// An `<interface type="vhostuser">`.
#[derive(Debug)]
pub(super) struct Interface {
    alias: Option<String>,
    /// Keys of `[vif]` that the interface gives, for those that the element leaves out.
    keys: Vec<(&'static str, String)>,
}

impl Element {
    fn key(&self, key: &str) -> Option<&str> {
        self.keys.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }

    /// Text by which a person finds the element.
    fn shown(&self, index: usize) -> String {
        let says = self.name.as_deref().or(self.alias.as_deref()).or_else(|| self.key("mac"));
        says.map_or_else(|| format!("number {}", index + 1), plain_short)
    }
}

impl Interface {
    pub(super) fn key(&self, key: &str) -> Option<&str> {
        self.keys.iter().find(|(known, _)| *known == key).map(|(_, value)| value.as_str())
    }
}

/// Parses a domain. No file or address that the text names is read.
pub(super) fn parse(xml: &str) -> Result<Document<'_>, DomainError> {
    let options =
        ParsingOptions { nodes_limit: limits::DOMAIN_XML_NODES_MAX, ..ParsingOptions::default() };
    Document::parse_with_options(xml, options)
        .map_err(|error| DomainError::NotXml(error.to_string()))
}

/// The owner of a domain's interfaces.
pub(super) fn owner(xml: &str) -> Result<Owner, DomainError> {
    owner_of(parse(xml)?.root_element())
}

fn owner_of(domain: Node<'_, '_>) -> Result<Owner, DomainError> {
    let uuid = child(domain, "uuid").and_then(|uuid| uuid.text()).map(str::trim);
    let is_uuid =
        |text: &&str| text.len() == 36 && text.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    let uuid = uuid.filter(is_uuid).ok_or(DomainError::NoUuid)?;
    format!("libvirt:{}", uuid.to_ascii_lowercase()).parse().map_err(|_| DomainError::NoUuid)
}

/// An element of libvirt's.
pub(super) fn child<'a, 'i>(node: Node<'a, 'i>, name: &str) -> Option<Node<'a, 'i>> {
    node.children().find(|it| it.has_tag_name(name))
}

impl Domain {
    pub(super) fn read(xml: &str) -> Result<Self, DomainError> {
        let document = parse(xml)?;
        let domain = document.root_element();
        let owner = owner_of(domain)?;
        let interfaces: Vec<_> = child(domain, "devices")
            .into_iter()
            .flat_map(|devices| devices.children())
            .filter_map(Interface::read)
            .collect();
        let elements = elements(domain)?;
        if elements.len().max(interfaces.len()) > limits::DOMAIN_VIFS_MAX {
            return Err(DomainError::Many);
        }
        let labels = domain.children().filter(|it| it.has_tag_name("seclabel"));
        let has_own_account = labels.filter_map(|it| it.attribute("model")).any(|it| it == "dac");
        Ok(Self { owner, has_own_account, elements, interfaces })
    }

    /// The interfaces that weir makes for the domain.
    pub(super) fn vifs(&self, control: &SocketPath) -> Result<Vec<VifConfig>, LibvirtError> {
        let mut vifs: Vec<VifConfig> = Vec::new();
        for (index, found) in self.matched()?.into_iter().enumerate() {
            let element = &self.elements[index];
            let vif = element.vif(index, found, &self.owner, control)?;
            let conflict =
                |other: &&VifConfig| other.name == vif.name || other.socket == vif.socket;
            if vifs.iter().find(conflict).is_some() {
                return Err(DomainError::Same(vif.name.to_string()).into());
            }
            vifs.push(vif);
        }
        Ok(vifs)
    }

    /// The index of the element that makes the interface `name`, and the socket of its `<interface>`.
    pub(super) fn element_of(&self, name: &PortName) -> Result<(usize, Option<&str>), DomainError> {
        let mut all = self.elements.iter().zip(self.matched()?).enumerate();
        let found = all.find_map(|(index, (element, interface))| {
            let of_interface = interface.and_then(|it| it.key("socket"));
            let socket = element.key("socket").or(of_interface);
            let own = element.name.as_deref().or_else(|| socket.map(stem));
            (own == Some(name.as_str())).then_some((index, socket))
        });
        found.ok_or_else(|| DomainError::NotThere(name.to_string()))
    }

    /// The interface of each element: the one that the element names, or the next one that no element names. An element
    /// that names a socket may have no interface yet.
    fn matched(&self) -> Result<Vec<Option<&Interface>>, DomainError> {
        let named: Vec<_> = self.elements.iter().map(|element| self.named_by(element)).collect();
        let is_named = |index: &usize| !named.contains(&Some(*index));
        let mut rest = (0..self.interfaces.len()).filter(is_named);
        let matched =
            self.elements.iter().zip(&named).enumerate().map(|(index, (element, named))| {
                let names = element.alias.is_some() || element.key("mac").is_some();
                let found = match named {
                    Some(named) => Some(*named),
                    None if element.key("socket").is_some() => return Ok(None),
                    None if names => None,
                    None => rest.next(),
                };
                let found = found.ok_or_else(|| DomainError::NoInterface(element.shown(index)))?;
                Ok(Some(&self.interfaces[found]))
            });
        matched.collect()
    }

    fn named_by(&self, element: &Element) -> Option<usize> {
        let is_named = |interface: &Interface| match (&element.alias, element.key("socket")) {
            (Some(alias), _) => interface.alias.as_ref() == Some(alias),
            (None, Some(socket)) => interface.key("socket") == Some(socket),
            (None, None) => element.key("mac").is_some_and(|mac| {
                interface.key("mac").is_some_and(|own| own.eq_ignore_ascii_case(mac))
            }),
        };
        self.interfaces.iter().position(is_named)
    }
}

fn elements(domain: Node<'_, '_>) -> Result<Vec<Element>, DomainError> {
    let own = child(domain, "metadata").into_iter().flat_map(|it| it.children());
    let mut own = own.filter(|it| it.tag_name().namespace() == Some(NAMESPACE));
    let (vifs, more) = (own.next(), own.next());
    if more.is_some() {
        return Err(DomainError::Twice);
    }
    let Some(vifs) = vifs else { return Ok(Vec::new()) };
    if vifs.tag_name().name() != VIFS {
        return Err(unknown(vifs));
    }
    let each = vifs.children().filter(Node::is_element).take(limits::DOMAIN_VIFS_MAX + 1);
    let read = |(index, node): (usize, Node<'_, '_>)| match node.has_tag_name((NAMESPACE, VIF)) {
        true => Element::read(index, node),
        false => Err(unknown(node)),
    };
    each.enumerate().map(read).collect()
}

fn unknown(node: Node<'_, '_>) -> DomainError {
    DomainError::Element(plain_short(node.tag_name().name()))
}

impl Element {
    fn read(index: usize, node: Node<'_, '_>) -> Result<Self, DomainError> {
        let mut element = Self::default();
        for attribute in node.attributes() {
            let value = attribute.value().to_owned();
            match attribute.name() {
                ALIAS => element.alias = Some(value),
                NAME => element.name = Some(value),
                key => element.keys.push((key.to_owned(), value)),
            }
        }
        for node in node.children().filter(Node::is_element) {
            if node.has_tag_name((NAMESPACE, GROUPS)) {
                if element.key(GROUPS).is_some() {
                    return Err(DomainError::Groups(element.shown(index)));
                }
                let names = node.text().unwrap_or_default().trim().to_owned();
                element.keys.push((GROUPS.to_owned(), names));
                continue;
            }
            if !node.has_tag_name((NAMESPACE, FILTER)) {
                return Err(unknown(node));
            }
            if element.filter.len() == limits::FILTER_RULES_MAX {
                return Err(DomainError::Rules(element.shown(index)));
            }
            let text = node.text().unwrap_or_default().trim();
            let rule = FilterRule::from_str(text)
                .map_err(|error| DomainError::Rule { text: plain_short(text), error })?;
            element.filter.push(rule);
        }
        Ok(element)
    }

    fn vif(
        &self,
        index: usize,
        interface: Option<&Interface>,
        owner: &Owner,
        control: &SocketPath,
    ) -> Result<VifConfig, LibvirtError> {
        if self.key("by").is_some() {
            return Err(DomainError::By(self.shown(index)).into());
        }
        let of_interface = interface.map(|it| it.keys.as_slice()).unwrap_or_default();
        let of_interface = of_interface.iter().map(|(key, value)| (*key, value.as_str()));
        let own = self.keys.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let unsaid =
            of_interface.filter(|(key, _)| self.key(key).is_none()).chain([("by", owner.as_str())]);
        let all: Vec<_> = own.chain(unsaid).collect();
        let socket = all.iter().find(|(key, _)| *key == "socket").map(|(_, socket)| *socket);
        let name = self.name.as_deref().or_else(|| socket.map(stem)).unwrap_or_default();
        let name = PortName::from_str(name)
            .map_err(|error| DomainError::Name { text: plain_short(name), error })?;
        let settings: Vec<Setting> = all
            .iter()
            .map(|(key, value)| format!("{key}={value}").parse())
            .collect::<Result<_, _>>()
            .map_err(|_| DomainError::Element(self.shown(index)))?;
        let mut vif = vif_of(&name, &settings, control)?;
        if self.key("socket_mode").is_none() {
            vif.socket_mode = vif.socket_mode.or_else(|| SOCKET_MODE.parse().ok());
        }
        if vif.template.is_none() || !self.filter.is_empty() {
            vif.filter.clone_from(&self.filter);
        }
        Ok(vif)
    }
}

/// The interface with these settings. A running weir knows the keys of its template.
pub(super) fn vif_of(
    name: &PortName,
    settings: &[Setting],
    control: &SocketPath,
) -> Result<VifConfig, LibvirtError> {
    VifConfig::under_template(name, settings, control, |template| {
        ask(control, PATIENCE, |client| Ok(client.vif_of_template(template, name)?))
    })
}

/// The name of an interface whose socket is called `NAME.sock`.
fn stem(socket: &str) -> &str {
    let file = socket.rsplit('/').next().unwrap_or_default();
    file.strip_suffix(".sock").unwrap_or(file)
}

impl Interface {
    pub(super) fn read(node: Node<'_, '_>) -> Option<Self> {
        let is_ours = node.has_tag_name("interface") && node.attribute("type") == Some(VHOST_USER);
        let attribute = |name, key| child(node, name).and_then(|it| it.attribute(key));
        let source = child(node, "source").filter(|_| is_ours)?;
        let path = source.attribute("path").filter(|_| source.attribute("type") == Some("unix"))?;
        // libvirt names the VM's side of the socket, weir its own.
        let mode = match source.attribute("mode")? {
            "client" => "server",
            _ => "client",
        };
        let said = [
            ("mac", attribute("mac", "address")),
            ("queues", attribute("driver", "queues")),
            ("mtu", attribute("mtu", "size")),
            // QEMU refuses the device without the key.
            (
                "access_platform",
                attribute("driver", "iommu").filter(|it| *it == "on").map(|_| "true"),
            ),
        ];
        let said = said.into_iter().filter_map(|(key, value)| Some((key, value?.to_owned())));
        let keys = [("socket", path.to_owned()), ("mode", mode.to_owned())].into_iter().chain(said);
        let alias = attribute("alias", "name").map(ToOwned::to_owned);
        Some(Self { alias, keys: keys.collect() })
    }
}

/// Seconds between two attempts of a VM monitor to reach weir.
pub const RECONNECT_SECS: u32 = 1;

/// The type of domains whose processors QEMU emulates.
pub const EMULATED: &str = "qemu";
/// The namespace of elements that libvirt passes to QEMU unchanged.
pub(super) const QEMU_NAMESPACE: &str = "http://libvirt.org/schemas/domain/qemu/1.0";

/// The elements that share the guest's memory, which weir maps.
pub fn memory() -> Vec<String> {
    let lines = [
        "<memoryBacking>",
        "  <source type='memfd'/>",
        "  <access mode='shared'/>",
        "</memoryBacking>",
    ];
    lines.map(Into::into).into()
}

/// The name of an interface's device in libvirt. Those that users choose begin with `ua-` and have no dots.
pub fn alias_of(name: &PortName) -> String {
    format!("ua-weir-{}", name.as_str().replace('.', "_"))
}

/// The elements that set the interrupt vectors of devices, by their names.
pub fn overrides(aliases: impl IntoIterator<Item = String>, vectors: u32) -> String {
    let devices = aliases.into_iter().map(|alias| override_of(&alias, vectors));
    let devices: String = devices.collect();
    format!("<qemu:override xmlns:qemu='{QEMU_NAMESPACE}'>\n{devices}</qemu:override>")
}

/// The part of [`overrides`] for one device.
pub(super) fn override_of(alias: &str, vectors: u32) -> String {
    format!(
        "  <qemu:device alias='{alias}'><qemu:frontend>\n    \
         <qemu:property name='vectors' type='unsigned' value='{vectors}'/>\n  \
         </qemu:frontend></qemu:device>\n"
    )
}

/// The device for an interface, by its own name or by the one that libvirt chooses, `behind_iommu` or not.
pub fn interface(vif: &VifConfig, has_alias: bool, behind_iommu: bool) -> Vec<String> {
    let path = escaped(vif.socket.as_str());
    let mut xml = vec![
        "<interface type='vhostuser'>".into(),
        format!("  <mac address='{}'/>", vif.mac_or_derived()),
    ];
    if has_alias {
        xml.push(format!("  <alias name='{}'/>", alias_of(&vif.name)));
    }
    // libvirt names the VM's side of the socket, weir its own.
    match vif.mode {
        SocketRole::Server => {
            xml.push(format!("  <source type='unix' path='{path}' mode='client'>"));
            xml.push(format!("    <reconnect enabled='yes' timeout='{RECONNECT_SECS}'/>"));
            xml.push("  </source>".into());
        }
        SocketRole::Client => {
            xml.push(format!("  <source type='unix' path='{path}' mode='server'/>"));
        }
    }
    xml.push("  <model type='virtio'/>".into());
    let [rx_ring, tx_ring] = vif.ring_sizes();
    let behind = if behind_iommu { " iommu='on' ats='on'" } else { "" };
    xml.push(format!(
        "  <driver queues='{}' rx_queue_size='{rx_ring}' tx_queue_size='{tx_ring}'{behind}/>",
        vif.queues
    ));
    if let Some(mtu) = vif.mtu {
        xml.push(format!("  <mtu size='{mtu}'/>"));
    }
    xml.push("</interface>".into());
    xml
}

/// `text` between quotes or elements.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('\'', "&apos;")
}
