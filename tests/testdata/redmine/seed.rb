# A project with issues, and somebody who manages it.
Setting.rest_api_enabled = '1'
Setting.default_language = 'en'
Setting.autologin = '30'

alice = User.new(firstname: 'Alice', lastname: 'Example', mail: 'alice@example.com', language: 'en')
alice.login = 'alice'
alice.password = alice.password_confirmation = 'correct horse'
alice.save!
museum = Project.create!(name: 'Museum', identifier: 'museum', trackers: Tracker.all,
                         enabled_module_names: %w[issue_tracking wiki])
Member.create!(user: alice, project: museum, roles: [Role.find_by!(name: 'Manager')])

words = %w[pump valve river paper ticket shelf lantern barge copper window garden ledger]
Issue.transaction do
  400.times do |n|
    Issue.create!(project: museum, tracker: Tracker.first, author: alice, priority: IssuePriority.first,
                  status: IssueStatus.first, subject: "#{words[n % 12]} #{words[n / 12 % 12]} #{n}",
                  description: (words * 8).rotate(n).join(' '), notify: false)
  end
end
