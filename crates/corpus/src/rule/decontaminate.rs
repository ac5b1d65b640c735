//! Documents that hold parts of evaluation sets are dropped, or the parts are cut out.

use bessemer_dataflow::Result;
use bessemer_documents::{Document, DocumentPass, Scratch, Verdict, head};
use bessemer_privacy::decontaminate::{Decontaminated, Hit, Index};

/// Reason of documents that hold a part of an evaluation set.
pub(crate) const CONTAMINATED: &str = "contaminated";

/// The pass. It counts, as edits, the places of each set that a document held parts of.
pub(crate) struct Decontaminate(pub(crate) Index);

impl Decontaminate {
    fn count(&self, document: &mut Document<'_>, hits: &[Hit]) {
        for hit in hits {
            document.edits_mut().add_evaluation_set(self.0.name(hit.set), 1);
        }
    }
}

impl DocumentPass for Decontaminate {
    fn name(&self) -> &str {
        "decontaminate"
    }

    fn visit(&self, document: &mut Document<'_>, _: &mut Scratch) -> Result<Verdict> {
        match self.0.check(document.text()) {
            Decontaminated::Clean => {}
            Decontaminated::Dropped(hit) => {
                let detail = format!("{}: {}", self.0.name(hit.set), head(&hit.words));
                self.count(document, &[hit]);
                return Ok(Verdict::drop(CONTAMINATED, detail));
            }
            Decontaminated::Cut(left, hits) => {
                document.set_text(left);
                self.count(document, &hits);
            }
        }
        Ok(Verdict::Keep)
    }
}
