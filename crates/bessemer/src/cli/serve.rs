//! `bessemer serve`

use super::checkpoint::RunArgs;
use clap::Args;

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
    /// Seconds for the running requests after Ctrl-C.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(..=86_400))]
    pub(crate) drain: u64,
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
