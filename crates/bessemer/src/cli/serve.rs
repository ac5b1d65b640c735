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
    /// Texts that are generated at a time; each takes memory for a whole context.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = slots)]
    pub(crate) slots: usize,
    /// Requests that may wait while all slots are in use; a further one is answered with status 429.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = max_queue)]
    pub(crate) max_queue: usize,
    /// Tokens of a prompt and its text at most; the model's own context if left out.
    #[arg(long, value_name = "TOKENS")]
    pub(crate) context: Option<usize>,
    /// Name of the model in answers; that of the run directory if left out.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Seconds for the running requests after Ctrl-C or SIGTERM.
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=86_400))]
    pub(crate) drain: u64,
    /// File whose first line is a key that requests below /v1/ must carry (Authorization: Bearer KEY). Left out, the variable BESSEMER_API_KEY has the
    /// key; without both none is wanted.
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Origin whose pages may use the server from a browser (CORS), e.g. https://app.example.org; * for all (may be repeated).
    #[arg(long = "allow-origin", value_name = "ORIGIN", value_parser = origin)]
    pub(crate) allow_origins: Vec<String>,
    #[command(flatten)]
    pub(crate) hosts: HostArgs,
    /// Threads; 0 takes all cores.
    #[arg(long, default_value_t = 0, value_parser = super::threads)]
    pub(crate) threads: usize,
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
    /// Host name, besides those of this machine, that requests may be for: that of a proxy before the server (may be repeated).
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
