"""Records: what runs, evaluations and studies say about themselves. JSON in and out; nothing here
knows tensors.

Every record is sealed (``sealed.py``) and checked against its schema when it is read:

=========================  ======================================================================
``run_record.py``          a finished run
``evaluation_record.py``   a checkpoint judged on a task (``sheafdeq evaluate``)
``diagnosis_record.py``    continued iteration and spectrum (``sheafdeq diagnose``)
``staleness_record.py``    late and unreliable messages (``sheafdeq async``)
``certificate_record.py``  a verdict with its grounds (``sheafdeq certify``)
=========================  ======================================================================
"""

from sheafdeq.records.certificate_record import CERTIFICATE_SCHEMA as CERTIFICATE_SCHEMA
from sheafdeq.records.certificate_record import CERTIFICATE_SCHEMAS as CERTIFICATE_SCHEMAS
from sheafdeq.records.certificate_record import CertificateFacts as CertificateFacts
from sheafdeq.records.certificate_record import CertificateRecord as CertificateRecord
from sheafdeq.records.certificate_record import verdict_of as verdict_of
from sheafdeq.records.diagnosis_record import DIAGNOSIS_SCHEMA as DIAGNOSIS_SCHEMA
from sheafdeq.records.diagnosis_record import DiagnosisRecord as DiagnosisRecord
from sheafdeq.records.evaluation_record import EVALUATION_SCHEMA as EVALUATION_SCHEMA
from sheafdeq.records.evaluation_record import EvaluationRecord as EvaluationRecord
from sheafdeq.records.run_record import RECORD_FILE as RECORD_FILE
from sheafdeq.records.run_record import Best as Best
from sheafdeq.records.run_record import ModelFacts as ModelFacts
from sheafdeq.records.run_record import RunRecord as RunRecord
from sheafdeq.records.run_record import SolveFacts as SolveFacts
from sheafdeq.records.run_record import TaskFacts as TaskFacts
from sheafdeq.records.run_record import read_record as read_record
from sheafdeq.records.run_record import read_records as read_records
from sheafdeq.records.run_record import record_paths as record_paths
from sheafdeq.records.run_record import refuse_unreadable as refuse_unreadable
from sheafdeq.records.run_record import without_timing as without_timing
from sheafdeq.records.sealed import canonical_json as canonical_json
from sheafdeq.records.sealed import digest_of as digest_of
from sheafdeq.records.sealed import finite as finite
from sheafdeq.records.sealed import read_sealed as read_sealed
from sheafdeq.records.sealed import seal as seal
from sheafdeq.records.sealed import unseal as unseal
from sheafdeq.records.sealed import write_bytes as write_bytes
from sheafdeq.records.sealed import write_sealed as write_sealed
from sheafdeq.records.staleness_record import STALENESS_SCHEMA as STALENESS_SCHEMA
from sheafdeq.records.staleness_record import StalenessRecord as StalenessRecord
from sheafdeq.records.study_files import STUDIES as STUDIES
from sheafdeq.records.study_files import named_schema as named_schema
from sheafdeq.records.study_files import read_study as read_study
from sheafdeq.records.study_files import schema_of as schema_of
