<?php
// Writes articles with a history, as the people of a wiki would.
require_once getenv( 'MEDIAWIKI' ) . '/maintenance/Maintenance.php';

use MediaWiki\MediaWikiServices;

class Seed extends Maintenance {
	public function execute() {
		$services = MediaWikiServices::getInstance();
		$author = User::newSystemUser( 'Archivist', [ 'steal' => true ] );
		for ( $n = 1; $n <= 10; $n++ ) {
			$page = $services->getWikiPageFactory()->newFromTitle( Title::newFromText( "Pump $n" ) );
			for ( $edit = 1; $edit <= 10; $edit++ ) {
				$lines = [];
				for ( $line = 1; $line <= 150; $line++ ) {
					$lines[] = "Line $line of '''pump $n''', edit " . min( $edit, $line % 11 ) . ': see [[Pump ' . ( $line % 10 + 1 ) . ']].';
				}
				$page->doUserEditContent( new WikitextContent( implode( "\n\n", $lines ) ), $author, "Edit $edit" );
			}
		}
	}
}

$maintClass = Seed::class;
require_once RUN_MAINTENANCE_IF_MAIN;
