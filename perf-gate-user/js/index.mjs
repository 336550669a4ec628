// The package's exports; see index.d.mts for what each takes and gives.
export {
  _controlKeepAlive,
  controlLarge,
  controlLargeObject,
  controlNegative,
  controlOldSpace,
  controlPositive,
  controlRetained,
  controlWorker,
} from './controls.mjs';
export { formatResult, measure, runGate, verdict, zgcSuite } from './gate.mjs';

export const VERSION = '0.1.0';
