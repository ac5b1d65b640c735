//! `bessemer serve`

use super::checkpoint::RunArgs;
use clap::Args;
use std::path::PathBuf;

/// A model behind an interface that OpenAI's clients speak, with a chat page.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    /// Address to listen on; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub(crate) listen: String,
    /// Texts to generate at once; each takes memory for a whole context.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = slots)]
    pub(crate) slots: usize,
    /// Queued requests while all slots are in use; more are answered with 429.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = max_queue)]
    pub(crate) max_queue: usize,
    /// Most tokens of a prompt with its text [default: the model's context].
    #[arg(long, value_name = "TOKENS")]
    pub(crate) context: Option<usize>,
    /// Adapters on this model, and the name by which requests choose them (may be repeated).
    ///
    /// A run with [model.adapters], or a directory of PEFT. The field `model` of a request names one; the base has its own name.
    #[arg(long = "adapter", value_name = "NAME=DIR", value_parser = named_adapter, conflicts_with = "ranks")]
    pub(crate) adapters: Vec<NamedAdapter>,
    /// Accept adapters that do not record a hash of their base.
    #[arg(long, requires = "adapters")]
    pub(crate) unchecked_base: bool,
    /// Model name in answers [default: that of the run directory].
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Seconds that running requests have after Ctrl-C or SIGTERM.
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=86_400))]
    pub(crate) drain: u64,
    /// File whose first line is the API key of requests below /v1/.
    ///
    /// Clients send `Authorization: Bearer KEY`. Without the flag the variable BESSEMER_API_KEY has the key; without
    /// both no key is required.
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Web origin that may use the server (CORS); * for all (may be repeated).
    ///
    /// For example https://app.example.org.
    #[arg(long = "allow-origin", value_name = "ORIGIN", value_parser = origin)]
    pub(crate) allow_origins: Vec<String>,
    #[command(flatten)]
    pub(crate) hosts: HostArgs,
    /// Ranks that share the experts of each layer, as threads.
    ///
    /// The first has everything else. A number that divides the experts of every layer.
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) ranks: std::num::NonZeroUsize,
    /// Threads of each rank; 0 shares all cores out.
    #[arg(long, default_value_t = 0, value_parser = super::threads)]
    pub(crate) threads: usize,
}

/// `NAME=DIR`
#[derive(Debug, Clone)]
pub(crate) struct NamedAdapter {
    pub(crate) name: String,
    pub(crate) place: PathBuf,
}

fn named_adapter(text: &str) -> Result<NamedAdapter, String> {
    match text.split_once('=') {
        Some((name, place)) if !name.is_empty() && !place.is_empty() => {
            Ok(NamedAdapter { name: name.into(), place: place.into() })
        }
        _ => Err(format!("wanted NAME=DIR, such as notes=runs/notes, found {text:?}")),
    }
}

fn slots(text: &str) -> Result<usize, String> {
    super::whole(text, 1..=1024, "each takes memory for a whole context")
}

fn max_queue(text: &str) -> Result<usize, String> {
    super::whole(text, 0..=65_536, "a client that is refused tries again")
}

/// Names under which a server on this machine is reached.
#[derive(Debug, Args)]
pub(crate) struct HostArgs {
    /// Extra host name in requests, e.g. of a proxy (may be repeated).
    ///
    /// The names of this machine are always allowed.
    #[arg(long = "allow-host", value_name = "HOST", value_parser = host)]
    pub(crate) allow_hosts: Vec<String>,
}

fn host(text: &str) -> Result<String, String> {
    match !text.is_empty() && !text.contains(['/', '@', '*', ' ']) {
        true => Ok(text.to_owned()),
        false => Err(format!("wanted a host name such as models.example.org, found {text:?}")),
    }
}

fn origin(text: &str) -> Result<String, String> {
    let authority = text.strip_prefix("https://").or(text.strip_prefix("http://"));
    match text == "*" || authority.is_some_and(|rest| host(rest).is_ok()) {
        true => Ok(text.to_owned()),
        false => Err(format!("wanted an origin such as https://app.example.org, or *, found {text:?}")),
    }
}
